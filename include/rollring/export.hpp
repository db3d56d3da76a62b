#pragma once
// What librollring.so shows. The library is compiled with hidden visibility: nothing leaves it but
// what carries the first of these marks.

#define ROLLRING_API [[gnu::visibility("default")]]
// A type that a public header has to name, and that stays inside.
#define ROLLRING_LOCAL [[gnu::visibility("hidden")]]
