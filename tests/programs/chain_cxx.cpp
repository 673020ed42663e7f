// Behaviour: allocations below virtual calls, lambdas and templates, in catch blocks and in destructors during unwinding.
#include "check.h"

#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

namespace shapes {

NOINLINE void *allocate_here(size_t size) {
    void *block = ::operator new(size);
    KEEP(block);
    return block;
}

struct Shape {
    virtual ~Shape() = default;
    virtual void *draw(size_t size) const = 0;
};

struct Circle final : Shape {
    NOINLINE void *draw(size_t size) const override {
        void *block = allocate_here(size);
        KEEP(block);
        return block;
    }
};

template <typename Item> struct Canvas {
    std::unique_ptr<Shape> shape = std::make_unique<Circle>();
    NOINLINE Item *paint_all(size_t size) {
        Item *item = static_cast<Item *>(shape->draw(size));
        KEEP(item);
        return item;
    }
};

struct AllocatesWhenUnwound {
    NOINLINE ~AllocatesWhenUnwound() { ::operator delete(allocate_here(700)); }
};

NOINLINE void throw_it(int depth) {
    AllocatesWhenUnwound guard;
    if (depth == 0) throw std::logic_error("an error text that is longer than a small string can be");
    throw_it(depth - 1);
    KEEP(&guard);
}

NOINLINE void allocate_in_catch() {
    try {
        throw_it(5);
    } catch (const std::logic_error &) {
        ::operator delete(allocate_here(900));
    }
}

} // namespace shapes

int main() {
    shapes::Canvas<long> canvas;
    std::function<void()> call = [&canvas] { ::operator delete(canvas.paint_all(500)); };
    for (int turn = 0; turn < 2000; turn++) call();
    for (int turn = 0; turn < 300; turn++) shapes::allocate_in_catch();
    std::vector<int> numbers;
    for (int at = 0; at < 200000; at++) numbers.push_back(at);
    CHECK(numbers.back() == 199999);
    puts("the shapes are drawn");
    return 0;
}
