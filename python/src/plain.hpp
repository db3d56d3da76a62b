#pragma once
// PlainCodec: trees of plain data as bytes, and back. It runs no code that the bytes name.
//
//   value  N T F | i 8 bytes | I hex digits | d 8 bytes | s UTF-8 | b bytes | B bytearray
//          l values | t values | m keys and values | a array
//   array  how it comes back (1), its dtype, dims (1), 8 bytes for each, then its bytes, aligned
//   texts, bytes and what has several values say first how many, in 8 bytes

#include "nb.hpp"

namespace rollring::python {

// A Memory with these bytes, and what bind_plain() made of some.
void bind_plain(nb::module_& module);

}  // namespace rollring::python
