/* Says whether the library is there, and what the API returns without an agent. */
#include "holdfast.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(void) {
    if (!HOLDFAST_LOADED) {
        puts("not loaded");
        return 0;
    }
    char data[16];
    errno = 77;
    printf("checkpoint %d\n", holdfast_checkpoint());
    printf("start %d\n", holdfast_checkpoint_start());
    printf("restarted %d\n", holdfast_restarted());
    printf("restore %d\n", holdfast_restore_protected("none", data, sizeof data));
    printf("restore bad %d\n", holdfast_restore_protected("", data, sizeof data));
    printf("free %d\n", holdfast_free_protected(data));
    char *memory = holdfast_malloc_protected("field", 5000);
    printf("protected %d errno %d\n", memory != NULL && ((size_t)memory & 4095) == 0 && memory[8191] == 0, errno);
    memset(memory, 1, 8192);
    void *again = holdfast_malloc_protected("field", 1);
    printf("again %d\n", again == NULL && errno == EEXIST);
    printf("free %d\n", holdfast_free_protected(memory));
    printf("free again %d\n", holdfast_free_protected(memory));
    return 0;
}
