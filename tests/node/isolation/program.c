/* Linked dynamically, unlike the other program of the images: says its environment, and waits. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

int main(void) {
	const char *comma = "";

	printf("{\"cards\": [], \"environment\": {");
	for (char **entry = environ; *entry; entry++) {
		char *equals = strchr(*entry, '=');
		if (!equals || strpbrk(*entry, "\"\\\n"))
			continue;
		printf("%s\"%.*s\": \"%s\"", comma, (int)(equals - *entry), *entry, equals + 1);
		comma = ", ";
	}
	printf("}}\n");
	fflush(stdout);
	pause();
	return 0;
}
