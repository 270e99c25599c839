// Heat in a rod, which checkpoints itself by VELOC's interface in C++: plain memory, containers by serializers, a group
// with a name, an observer. Started again it goes on with the newest version. `plate STEPS CONFIGURATION`
#include <veloc.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

static void must(bool done, const char *what) {
    if (done) return;
    std::printf("FAIL %s\n", what);
    std::exit(1);
}

// A map as text: as any library for that would.
static void write(std::ostream &out, const std::map<int, double> &map) {
    for (const auto &entry : map) {
        out.write(reinterpret_cast<const char *>(&entry.first), sizeof entry.first);
        out.write(reinterpret_cast<const char *>(&entry.second), sizeof entry.second);
    }
}

static bool read(std::istream &in, std::map<int, double> &map) {
    std::pair<int, double> entry;
    map.clear();
    while (in.read(reinterpret_cast<char *>(&entry.first), sizeof entry.first)) {
        if (!in.read(reinterpret_cast<char *>(&entry.second), sizeof entry.second)) return false;
        map.insert(entry);
    }
    return true;
}

int main(int argc, char **argv) {
    if (argc < 3) return 64;
    int step = 0, steps = std::atoi(argv[1]), ended = 0, other = 7;
    std::vector<double> rod(10000);
    std::map<int, double> peaks;
    for (size_t at = 0; at < rod.size(); at++) rod[at] = at * 31 % 1009;

    veloc::client_t *client = veloc::get_client(0u, argv[2]);
    must(client == veloc::get_client(0u, argv[2]), "one client");
    must(client->register_observer(VELOC_OBSERVE_CKPT_END, [&](const std::string &name, int version) {
        must(name == "rod" && version == step, "the observer's version");
        ended++;
    }), "observer");
    must(client->mem_protect(0, &other, 1, sizeof other), "protect of what is not meant");
    must(client->mem_protect(1, &step, 1, sizeof step, "rod"), "protect");
    must(client->mem_protect(2, rod.data(), rod.size(), sizeof rod[0], "rod"), "protect");
    must(client->mem_protect(3, [&](std::ostream &out) { write(out, peaks); },
                             [&](std::istream &in) { return read(in, peaks); }, "rod"), "protect by a serializer");

    int version = client->restart_test("rod", 0);
    must(client->restart_test("rod", 0, 1) == VELOC_FAILURE, "another rank's");
    if (version > 0) {
        must(client->restart_begin("rod", version), "restart");
        must(client->recover_size(2) == rod.size() * sizeof rod[0] && client->recover_size(9) == 0, "sizes");
        must(client->recover_mem(VELOC_RECOVER_SOME, {1, 3}), "recover some");
        must(client->recover_mem(VELOC_RECOVER_REST, {1, 3}), "recover the rest");
        must(client->restart_end(true) && step == version, "the step of the version");
        must(peaks.size() == static_cast<size_t>(step), "the map of the version");
    }
    std::fprintf(stderr, "from %d\n", step);
    while (step < steps) {
        for (size_t at = 1; at + 1 < rod.size(); at++) rod[at] = 0.25 * (rod[at - 1] + 2 * rod[at] + rod[at + 1]);
        peaks[step] = rod[step % rod.size()];
        step++;
        usleep(2000);
        if (step % 10 == 0) must(client->checkpoint("rod", step), "checkpoint");
    }
    must(client->checkpoint_wait() && client->checkpoint_finished(), "wait");
    must(ended > 0 || version >= steps, "the observer was called");
    unsigned long long sum = 0;
    for (double value : rod) {
        unsigned long long bits;
        std::memcpy(&bits, &value, sizeof bits);
        sum = sum * 31 + bits;
    }
    for (const auto &entry : peaks) sum += entry.first * static_cast<unsigned long long>(entry.second * 1e6);
    std::printf("%d steps: %llx\n", step, sum);
    delete client;
    return 0;
}
