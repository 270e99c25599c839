// Exceptions that cross threads: each turn some threads fail, each in its own way; their exceptions are caught
// elsewhere, thrown anew, wrapped, and what was thrown at last is printed. exceptions [TURNS]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

struct Failure : std::runtime_error {
    explicit Failure(int number) : std::runtime_error("failure " + std::to_string(number)), number(number) {}
    int number;
};

// Counts those that live: unwinding must run every destructor once.
struct Guard {
    static thread_local int alive;
    Guard() { ++alive; }
    ~Guard() { --alive; }
};
thread_local int Guard::alive = 0;

static int dig(int depth, int number)
{
    Guard guard;
    if (depth == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        throw Failure(number);
    }
    try {
        return dig(depth - 1, number) + 1;
    } catch (const std::logic_error &) {
        return -1;
    }
}

static int work(int turn, int place)
{
    try {
        return dig(5 + place * 3, turn * 10 + place);
    } catch (const Failure &failure) {
        if (Guard::alive != 0) std::abort();
        if (failure.number % 3 == 0) throw;
        std::throw_with_nested(std::out_of_range("place " + std::to_string(place)));
    }
}

static std::string story(const std::exception &error)
{
    try {
        std::rethrow_if_nested(error);
        return error.what();
    } catch (const std::exception &inner) {
        return std::string(error.what()) + " after " + story(inner);
    }
}

// Throws it once more in a thread of its own.
static std::string told(std::exception_ptr error)
{
    std::promise<std::string> promise;
    std::thread teller([&promise, error] {
        try {
            std::rethrow_exception(error);
        } catch (const std::exception &again) {
            promise.set_value(story(again));
        }
    });
    teller.join();
    return promise.get_future().get();
}

int main(int argc, char **argv)
{
    int turns = argc > 1 ? std::atoi(argv[1]) : 300;
    for (int turn = 0; turn < turns; turn++) {
        std::vector<std::future<int>> workers;
        for (int place = 0; place < 4; place++) workers.push_back(std::async(std::launch::async, work, turn, place));
        for (auto &worker : workers) {
            try {
                std::printf("%d: %d\n", turn, worker.get());
            } catch (...) {
                std::printf("%d: %s\n", turn, told(std::current_exception()).c_str());
            }
        }
        std::fflush(stdout);
    }
    std::puts("PASS");
}
