/* Pseudo-random sequences go on where they were; random bytes of the kernel come, by call and by an open device.
 * `sequences [ROUNDS]` */
#include "rounds.h"
#include <fcntl.h>
#include <sys/random.h>

static int device;
static struct random_data own;
static char state[128];

static void one_round(long round)
{
    char bytes[2][32] = {{0}};
    int32_t value = 0;
    CHECK(random_r(&own, &value) == 0);
    CHECK(getrandom(bytes[0], 32, 0) == 32 && read(device, bytes[1], 32) == 32);
    CHECK(memcmp(bytes[0], bytes[1], 32) != 0);
    step("sequences %ld: %d %ld %ld %d", round, rand(), random(), lrand48(), value);
}

int main(int argc, char **argv)
{
    srand(1);
    srandom(2);
    srand48(3);
    CHECK(initstate_r(4, state, sizeof state, &own) == 0);
    CHECK((device = open("/dev/urandom", O_RDONLY | O_CLOEXEC)) >= 0);
    return run_rounds("sequences", number_argument(argc, argv, 1, 45), one_round);
}
