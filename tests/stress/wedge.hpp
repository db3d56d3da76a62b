#pragma once

namespace rollring::test {

// There only in the program that tells the lie "wedge" (wedge.cpp).
[[gnu::weak]] void wedge_is_linked();

}  // namespace rollring::test
