/* Stands for HAMi-core: the dynamic loader loads it first, and it says what it was told. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

extern char **environ;

static int is_there(const char *path) {
	struct stat found;
	return stat(path, &found) == 0;
}

__attribute__((constructor)) static void told(void) {
	const char *cache = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
	FILE *shared = cache ? fopen(cache, "w") : NULL;

	setenv("LIBRARY_IS", "loaded", 1);
	setenv("LIBRARY_CACHE", shared ? "written" : "none", 1);
	setenv("LIBRARY_LOCKS", is_there("/tmp/vgpulock") ? "there" : "none", 1);
	if (shared)
		fclose(shared);
}
