/*
 * NVML for tests: answers what a table says, so that the real binding is driven by every answer.
 *
 * The table is the file of the environment variable TENURE_TEST_NVML, read at every call. A line is
 *
 *     <function> <key> <status> <value> ...
 *
 * where the key is the index of the device, with what else is asked behind commas (`0,1`), or `-`; a
 * MIG device is `0.1`. What no line says is not supported (status 3). The n-th wait for an event has
 * the key n; one that no line speaks of times out (status 10).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK 0
#define NOT_SUPPORTED 3
#define INSUFFICIENT_SIZE 7
#define TIMEOUT 10
#define MIG 1000 /* handles of MIG devices: MIG * (device + 1) + index */

typedef size_t handle; /* device + 1: none is NULL */
typedef unsigned long long u64;

static unsigned waits;

static int ask(const char *function, const char *key, char *value, size_t size)
{
    const char *path = getenv("TENURE_TEST_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[4096], name[128], said[128];
    int status, at, found = strcmp(function, "nvmlEventSetWait_v2") ? NOT_SUPPORTED : TIMEOUT;
    value[0] = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%127s %127s %d %n", name, said, &status, &at) != 3) continue;
        if (strcmp(name, function) || strcmp(said, key)) continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(value, size, "%s", line + at);
        found = status;
        break;
    }
    if (file) fclose(file);
    return found;
}

static const char *named(handle device, char *key)
{
    if (device >= MIG) sprintf(key, "%zu.%zu", device / MIG - 1, device % MIG);
    else sprintf(key, "%zu", device - 1);
    return key;
}

#define ASK(key_format, ...) \
    char key[128], value[4096]; \
    snprintf(key, sizeof key, key_format, __VA_ARGS__); \
    int status = ask(__func__, key, value, sizeof value); \
    if (status != OK) return status;
#define OF(device) char of[64]; named(device, of);

int nvmlInitWithFlags(unsigned flags) { (void)flags; ASK("%s", "-") return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int status) { (void)status; return "as the table says"; }

int nvmlSystemGetDriverVersion(char *text, unsigned size)
{
    ASK("%s", "-")
    snprintf(text, size, "%s", value);
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    ASK("%s", "-")
    *count = strtoul(value, NULL, 10);
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *device)
{
    ASK("%u", index)
    *device = index + 1;
    return OK;
}

#define TEXT(function) \
    int function(handle device, char *text, unsigned size) \
    { OF(device) ASK("%s", of) snprintf(text, size, "%s", value); return OK; }
#define NUMBER(function) \
    int function(handle device, unsigned *number) \
    { OF(device) ASK("%s", of) *number = strtoul(value, NULL, 10); return OK; }
#define OF_LINK(function) \
    int function(handle device, unsigned link, unsigned *number) \
    { OF(device) ASK("%s,%u", of, link) *number = strtoul(value, NULL, 10); return OK; }

TEXT(nvmlDeviceGetUUID)
TEXT(nvmlDeviceGetName)
NUMBER(nvmlDeviceGetMinorNumber)
NUMBER(nvmlDeviceGetMaxMigDeviceCount)
OF_LINK(nvmlDeviceGetNvLinkState)
OF_LINK(nvmlDeviceGetNvLinkVersion)
OF_LINK(nvmlDeviceGetNvLinkRemoteDeviceType)

struct memory_v2 { unsigned version; u64 total, reserved, free, used; };

int nvmlDeviceGetMemoryInfo_v2(handle device, struct memory_v2 *memory)
{
    OF(device) ASK("%s", of)
    sscanf(value, "%llu %llu", &memory->total, &memory->reserved);
    memory->free = memory->total - memory->reserved;
    return OK;
}

struct memory { u64 total, free, used; };

int nvmlDeviceGetMemoryInfo(handle device, struct memory *memory)
{
    OF(device) ASK("%s", of)
    sscanf(value, "%llu", &memory->total);
    return OK;
}

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };

static void address(const char *text, struct pci *pci)
{
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", text);
    sscanf(text, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
}

int nvmlDeviceGetPciInfo_v3(handle device, struct pci *pci)
{
    OF(device) ASK("%s", of)
    address(value, pci);
    return OK;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(handle device, unsigned link, struct pci *pci)
{
    OF(device) ASK("%s,%u", of, link)
    address(value, pci);
    return OK;
}

int nvmlDeviceGetMigMode(handle device, unsigned *now, unsigned *pending)
{
    OF(device) ASK("%s", of)
    sscanf(value, "%u %u", now, pending);
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(handle device, unsigned index, handle *mig)
{
    OF(device) ASK("%s,%u", of, index)
    *mig = device * MIG + index;
    return OK;
}

struct process { unsigned pid; u64 memory; unsigned gpu_instance, compute_instance; };

static int processes(const char *function, handle device, unsigned *count, struct process *found)
{
    char of[64], value[4096], *word;
    int status = ask(function, named(device, of), value, sizeof value);
    unsigned n = 0, room = *count;
    if (status != OK) return status;
    for (word = strtok(value, " "); word; word = strtok(NULL, " "), n++)
        if (found && n < room) sscanf(word, "%u=%llu", &found[n].pid, &found[n].memory);
    *count = n;
    return n > (found ? room : 0) ? INSUFFICIENT_SIZE : OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(handle d, unsigned *n, struct process *p)
{ return processes(__func__, d, n, p); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(handle d, unsigned *n, struct process *p)
{ return processes(__func__, d, n, p); }

int nvmlDeviceGetTotalEccErrors(handle device, unsigned kind, unsigned counter, u64 *errors)
{
    OF(device) ASK("%s,%u,%u", of, kind, counter)
    *errors = strtoull(value, NULL, 10);
    return OK;
}

int nvmlDeviceGetRemappedRows(handle device, unsigned *a, unsigned *b, unsigned *c, unsigned *d)
{
    OF(device) ASK("%s", of)
    sscanf(value, "%u %u %u %u", a, b, c, d);
    return OK;
}

int nvmlDeviceGetP2PStatus(handle a, handle b, unsigned index, unsigned *status_of)
{
    OF(a) ASK("%s,%zu,%u", of, b - 1, index)
    *status_of = strtoul(value, NULL, 10);
    return OK;
}

int nvmlDeviceGetTopologyCommonAncestor(handle a, handle b, unsigned *level)
{
    OF(a) ASK("%s,%zu", of, b - 1)
    *level = strtoul(value, NULL, 10);
    return OK;
}

int nvmlEventSetCreate(handle *set) { ASK("%s", "-") waits = 0; *set = 1; return OK; }
int nvmlEventSetFree(handle set) { (void)set; return OK; }

int nvmlDeviceRegisterEvents(handle device, u64 kinds, handle set)
{
    (void)set;
    OF(device) ASK("%s,%llu", of, kinds)
    return OK;
}

struct event { handle device; u64 kind, data; unsigned gpu_instance, compute_instance; };

int nvmlEventSetWait_v2(handle set, struct event *event, unsigned ms)
{
    unsigned device;
    (void)set, (void)ms;
    ASK("%u", waits)
    waits++;
    sscanf(value, "%u %llu %llu", &device, &event->kind, &event->data);
    event->device = device + 1;
    return OK;
}
