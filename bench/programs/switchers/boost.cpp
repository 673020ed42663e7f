// Behaviour: fibers of Boost.Context on several threads allocate, are resumed by other threads, throw, and are abandoned.
// Usage: boost SECONDS; prints how many rounds were right.
#include <boost/context/fiber.hpp>
#include <boost/context/fixedsize_stack.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace ctx = boost::context;
using Clock = std::chrono::steady_clock;

static size_t work(int depth, size_t seed)
{
    if (depth > 0)
        return work(depth - 1, seed) + 1;
    std::map<size_t, std::string> map;
    for (size_t i = 0; i < 10; i++)
        map[i * seed % 97] = std::string(10 + i * 30, 'x');
    if (seed % 7 == 0)
        throw std::runtime_error("seven");
    size_t total = 0;
    for (auto &entry : map)
        total += entry.second.size();
    return total;
}

static ctx::fiber fiber(size_t seed, size_t *total)
{
    return ctx::fiber{std::allocator_arg, ctx::fixedsize_stack(64 << 10), [=](ctx::fiber &&back) {
                          std::vector<int> held(200, 7);
                          for (size_t turn = 1; turn <= 8; turn++) {
                              try {
                                  *total += work(static_cast<int>(seed % 25), seed + turn) > 0;
                              } catch (const std::runtime_error &) {
                                  *total += 1;
                              }
                              back = std::move(back).resume();
                          }
                          return std::move(back);
                      }};
}

static unsigned long rounds_until(Clock::time_point end)
{
    unsigned long rounds = 0;
    for (; Clock::now() < end; rounds++) {
        std::vector<ctx::fiber> fibers;
        std::vector<size_t> totals(40);
        for (size_t i = 0; i < totals.size(); i++)
            fibers.push_back(fiber(i + rounds, &totals[i]));
        auto resume = [&](int turns) {
            for (int turn = 0; turn < turns; turn++)
                for (auto &one : fibers)
                    one = std::move(one).resume();
        };
        resume(3);
        // Another thread goes on with them; those of every other round are abandoned, which unwinds them.
        std::thread([&] { resume(4); }).join();
        if (rounds % 2 == 0)
            resume(1);
        for (size_t total : totals)
            if (total != (rounds % 2 == 0 ? 8 : 7)) {
                std::puts("wrong");
                std::exit(1);
            }
    }
    return rounds;
}

int main(int count, char **words)
{
    auto end = Clock::now() + std::chrono::seconds(count > 1 ? std::atoi(words[1]) : 1);
    unsigned long other = 0;
    std::thread thread([&] { other = rounds_until(end); });
    unsigned long rounds = rounds_until(end);
    thread.join();
    std::printf("right: %lu\n", rounds + other);
}
