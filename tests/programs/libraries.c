/* Libraries that come and go while the program runs: handles, functions and data of one that stays, others loaded and
 * closed again in every round. `libraries [ROUNDS]` */
#include "rounds.h"
#include <dlfcn.h>

static void *kept, *passing;
static double (*power)(double, double);
static const char *const names[] = {"libutil.so.1", "libanl.so.1", "libnsl.so.1", "libBrokenLocale.so.1",
    "libthread_db.so.1", "libz.so.1", "libcrypt.so.1"};
#define NAMES (long)(sizeof names / sizeof names[0])

static void one_round(long round)
{
    Dl_info info;
    CHECK(power(2, (double)(round % 50)) == (double)((uint64_t)1 << round % 50));
    CHECK(dlsym(kept, "pow") == (void *)(uintptr_t)power && dladdr((void *)(uintptr_t)power, &info) != 0);
    CHECK(strstr(info.dli_fname, "libm.so") != NULL);
    if (passing != NULL) CHECK(dlclose(passing) == 0);
    passing = dlopen(names[round % NAMES], RTLD_NOW | RTLD_LOCAL);
    CHECK(dlopen("libnothing-of-that-name.so", RTLD_NOW) == NULL && dlerror() != NULL);
}

int main(int argc, char **argv)
{
    CHECK((kept = dlopen("libm.so.6", RTLD_LAZY)) != NULL);
    void *symbol = dlsym(kept, "pow");
    CHECK(symbol != NULL);
    memcpy(&power, &symbol, sizeof power);
    return run_rounds("libraries", number_argument(argc, argv, 1, 45), one_round);
}
