/* veloc.hpp - VELOC's interface in C++, over that in C (veloc.h, libveloc-client.so): a header alone.
 *
 * Programs that were written for VELOC 1.8 are compiled and linked as before: c++ app.cpp -lveloc-client. Without MPI's
 * header there is get_client(id, ...) alone. What differs is in docs/veloc.md. Calls that fail return false, or
 * VELOC_FAILURE; why is on standard error.
 *
 * The objects of serializers are bytes of their own: they are made at checkpoint_mem, and are taken apart at
 * recover_mem.
 */
#ifndef HOLDFAST_VELOC_HPP
#define HOLDFAST_VELOC_HPP

#include "veloc.h"

#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace veloc {

class client_t {
protected:
    static constexpr char default_mem_group[] = "default";
    using serializer_t = std::function<void(std::ostream &)>;
    using deserializer_t = std::function<bool(std::istream &)>;
    using observer_t = std::function<void(const std::string &name, int version)>;

public:
    virtual bool mem_protect(int id, void *ptr, size_t count, size_t base_size,
                             const std::string &name = default_mem_group) = 0;
    virtual bool mem_protect(int id, const serializer_t &s, const deserializer_t &d,
                             const std::string &name = default_mem_group) = 0;
    virtual bool mem_unprotect(int id, const std::string &name = default_mem_group) = 0;
    virtual void mem_clear(const std::string &name = default_mem_group) = 0;
    virtual bool register_observer(int type, const observer_t &obs) = 0;

    virtual std::string route_file(const std::string &original) = 0;
    virtual bool cleanup(const std::string &name) = 0;

    virtual bool checkpoint(const std::string &name, int version) = 0;
    virtual bool checkpoint_begin(const std::string &name, int version) = 0;
    virtual bool checkpoint_mem(int mode, const std::set<int> &ids) = 0;
    virtual bool checkpoint_end(bool success) = 0;
    virtual bool checkpoint_wait() = 0;
    virtual bool checkpoint_finished() = 0;

    /* `target_rank`: the own one alone is possible, which -1 says. */
    virtual int restart_test(const std::string &name, int version, int target_rank = -1) = 0;
    virtual bool restart(const std::string &name, int version, int target_rank = -1) = 0;
    virtual bool restart_begin(const std::string &name, int version, int target_rank = -1) = 0;
    virtual size_t recover_size(int id) = 0;
    virtual bool recover_mem(int mode, const std::set<int> &ids) = 0;
    virtual bool restart_end(bool success) = 0;

    virtual ~client_t() = 0;
};

inline client_t::~client_t() {}

namespace holdfast {

class client final : public client_t {
    struct Serialized {
        serializer_t write;
        deserializer_t read;
        /* As the library has it registered. */
        std::string bytes;
    };

    /* By group, by id. */
    std::map<std::string, std::map<int, Serialized>> serialized;
    /* Ids of memory, by group. */
    std::map<std::string, std::set<int>> plain;
    std::map<int, observer_t> observers;
    /* What a checkpoint or restart that is under way is of. */
    std::string name;
    int version = 0;

    static bool done(int result) { return result == VELOC_SUCCESS; }

    static bool is_default(const std::string &group) { return group == default_mem_group; }

    static bool protect(int id, void *ptr, size_t count, size_t base_size, const std::string &group) {
        return done(is_default(group) ? VELOC_Mem_protect(id, ptr, count, base_size)
                                      : VELOC_Region_protect(id, ptr, count, base_size, group.c_str()));
    }

    bool has(const std::string &group) const {
        auto memory = plain.find(group);
        auto others = serialized.find(group);
        return (memory != plain.end() && !memory->second.empty())
            || (others != serialized.end() && !others->second.empty());
    }

    /* Where the memory of the checkpoint under way is. */
    std::string group() const { return has(name) ? name : default_mem_group; }

    static bool is_chosen(int mode, const std::set<int> &ids, int id) {
        return mode == VELOC_CKPT_ALL || (ids.count(id) > 0) == (mode == VELOC_CKPT_SOME);
    }

    static bool is_own(int target_rank) {
        if (target_rank >= 0) std::cerr << "veloc (holdfast): checkpoints of another rank cannot be asked for\n";
        return target_rank < 0;
    }

public:
    bool mem_protect(int id, void *ptr, size_t count, size_t base_size,
                     const std::string &group = default_mem_group) override {
        bool is_good = protect(id, ptr, count, base_size, group);
        if (is_good) {
            serialized[group].erase(id);
            plain[group].insert(id);
        }
        return is_good;
    }

    bool mem_protect(int id, const serializer_t &s, const deserializer_t &d,
                     const std::string &group = default_mem_group) override {
        plain[group].erase(id);
        serialized[group][id] = Serialized{s, d, std::string()};
        return protect(id, nullptr, 0, 1, group);
    }

    bool mem_unprotect(int id, const std::string &group = default_mem_group) override {
        bool was = plain[group].erase(id) + serialized[group].erase(id) > 0;
        int result = is_default(group) ? VELOC_Mem_unprotect(id) : VELOC_Region_unprotect(id, group.c_str());
        return was && done(result);
    }

    void mem_clear(const std::string &group = default_mem_group) override {
        plain.erase(group);
        serialized.erase(group);
        if (is_default(group)) {
            VELOC_Mem_clear();
        } else {
            VELOC_Region_clear(group.c_str());
        }
    }

    bool register_observer(int type, const observer_t &obs) override {
        bool is_new = observers.count(type) == 0;
        observers[type] = obs;
        return is_new;
    }

    std::string route_file(const std::string &original) override {
        std::vector<char> routed(VELOC_MAX_NAME);
        return done(VELOC_Route_file(original.c_str(), routed.data())) ? std::string(routed.data()) : std::string();
    }

    bool cleanup(const std::string &of) override { return done(VELOC_Cleanup(of.c_str())); }

    bool checkpoint(const std::string &of, int number) override {
        /* What was put before is safe; only what has failed since is asked for. */
        if (VELOC_Checkpoint_finished() == 1 && !checkpoint_wait()) return false;
        if (!checkpoint_begin(of, number)) return false;
        bool is_good = checkpoint_mem(VELOC_CKPT_ALL, {});
        return checkpoint_end(is_good) && is_good;
    }

    bool checkpoint_begin(const std::string &of, int number) override {
        if (!done(VELOC_Checkpoint_begin(of.c_str(), number))) return false;
        name = of;
        version = number;
        return true;
    }

    bool checkpoint_mem(int mode, const std::set<int> &ids) override {
        std::string from = group();
        for (auto &entry : serialized[from]) {
            if (!is_chosen(mode, ids, entry.first)) continue;
            std::ostringstream out(std::ios::out | std::ios::binary);
            entry.second.write(out);
            if (!out) return false;
            entry.second.bytes = out.str();
            std::string &bytes = entry.second.bytes;
            if (!protect(entry.first, &bytes[0], bytes.size(), 1, from)) return false;
        }
        std::vector<int> list(ids.begin(), ids.end());
        return done(VELOC_Checkpoint_selective(mode, list.data(), static_cast<int>(list.size())));
    }

    bool checkpoint_end(bool success) override {
        bool is_good = done(VELOC_Checkpoint_end(success));
        auto observer = observers.find(VELOC_OBSERVE_CKPT_END);
        if (is_good && success && observer != observers.end()) observer->second(name, version);
        return is_good;
    }

    bool checkpoint_wait() override { return done(VELOC_Checkpoint_wait()); }
    bool checkpoint_finished() override { return VELOC_Checkpoint_finished() == 1; }

    int restart_test(const std::string &of, int number, int target_rank = -1) override {
        return is_own(target_rank) ? VELOC_Restart_test(of.c_str(), number) : VELOC_FAILURE;
    }

    bool restart(const std::string &of, int number, int target_rank = -1) override {
        return restart_begin(of, number, target_rank) && recover_mem(VELOC_RECOVER_ALL, {}) && restart_end(true);
    }

    bool restart_begin(const std::string &of, int number, int target_rank = -1) override {
        if (!is_own(target_rank) || !done(VELOC_Restart_begin(of.c_str(), number))) return false;
        name = of;
        version = number;
        return true;
    }

    /* 0: there is none. */
    size_t recover_size(int id) override {
        int64_t bytes = HOLDFAST_recover_size(id);
        return bytes < 0 ? 0 : static_cast<size_t>(bytes);
    }

    bool recover_mem(int mode, const std::set<int> &ids) override {
        std::string to = group();
        std::set<int> there;
        for (auto &entry : serialized[to]) {
            int64_t size = is_chosen(mode, ids, entry.first) ? HOLDFAST_recover_size(entry.first) : -1;
            if (size < 0) continue;
            there.insert(entry.first);
            entry.second.bytes.assign(static_cast<size_t>(size), '\0');
            std::string &bytes = entry.second.bytes;
            if (!protect(entry.first, &bytes[0], bytes.size(), 1, to)) return false;
        }
        std::vector<int> list(ids.begin(), ids.end());
        if (!done(VELOC_Recover_selective(mode, list.data(), static_cast<int>(list.size())))) return false;
        for (auto &entry : serialized[to]) {
            if (there.count(entry.first) == 0) continue;
            std::istringstream in(entry.second.bytes, std::ios::in | std::ios::binary);
            if (!entry.second.read(in)) {
                std::cerr << "veloc (holdfast): memory " << entry.first << " of " << name << ": not deserialized\n";
                return false;
            }
        }
        return true;
    }

    bool restart_end(bool success) override { return done(VELOC_Restart_end(success)); }

    ~client() override {
        VELOC_Finalize(0);
        own = nullptr;
    }

    /* The one that there is. */
    static inline client_t *own = nullptr;
};

/* The one client of a process, which `init` begins. As with VELOC it is there until the end of the process, or until
 * it is deleted. */
template <typename Init> client_t *begun(Init init) {
    if (client::own == nullptr) {
        if (init() != VELOC_SUCCESS) throw std::runtime_error("VELOC has not begun: standard error says why");
        client::own = new client();
    }
    return client::own;
}

} // namespace holdfast

/* The client of this process, made by the first call. Throws std::runtime_error. */
inline client_t *get_client(unsigned int id, const std::string &cfg_file) {
    return holdfast::begun([&] { return VELOC_Init_single(id, cfg_file.c_str()); });
}

#ifdef MPI_VERSION
inline client_t *get_client(MPI_Comm comm, const std::string &cfg_file) {
    return holdfast::begun([&] { return VELOC_Init(comm, cfg_file.c_str()); });
}
#endif

} // namespace veloc

#endif
