// Behaviour: a library has a thread_local object with a destructor that allocates and frees.
#include "check.h"

#include <string>
#include <vector>

namespace {

struct Diary {
    std::vector<std::string> pages;
    ~Diary() {
        for (int page = 0; page < 200; page++) pages.push_back(std::string(100 + page, 'x'));
        CHECK(pages.back().size() == 299);
        pages.clear();
        pages.shrink_to_fit();
        churn(100, 4000, 9);
    }
};

thread_local Diary diary;

} // namespace

extern "C" void write_diary(void) { diary.pages.emplace_back("a page that is too long for the small string"); }
