#pragma once
// A block that the disk cannot read.

#include <sys/types.h>

namespace rollring::test {

struct BadBlock {
    ino_t file = 0;  // 0: there is none
    off_t offset = 0;
};
extern BadBlock bad_block;  // of pread() in this program

}  // namespace rollring::test
