#include "cli/formats/gzip.hpp"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <new>

namespace rollring::cli {
namespace {

constexpr int with_gzip_header = 15 + 16;  // zlib's largest window, and gzip's frame around it

class Inflater {
  public:
    Inflater() {
        if (::inflateInit2(&state_, with_gzip_header) != Z_OK) throw std::bad_alloc();
    }
    Inflater(const Inflater&) = delete;
    Inflater& operator=(const Inflater&) = delete;
    ~Inflater() { ::inflateEnd(&state_); }
    z_stream& state() { return state_; }

  private:
    z_stream state_{};
};

}  // namespace

std::string unpack_gzip(std::string_view gzip, std::size_t most) {
    Inflater inflater;
    z_stream& state = inflater.state();
    std::array<char, 65536> piece{};
    std::string text;
    while (!gzip.empty()) {
        const std::size_t some = std::min<std::size_t>(gzip.size(), std::size_t{1} << 30);
        state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(gzip.data()));
        state.avail_in = static_cast<uInt>(some);
        state.next_out = reinterpret_cast<Bytef*>(piece.data());
        state.avail_out = static_cast<uInt>(piece.size());
        const int answer = ::inflate(&state, Z_NO_FLUSH);
        if (answer != Z_OK && answer != Z_STREAM_END) break;
        gzip.remove_prefix(some - state.avail_in);
        const std::size_t got = piece.size() - state.avail_out;
        if (text.size() + got > most) throw GzipTooLong("its unpacked data is too long");
        text.append(piece.data(), got);
        if (answer != Z_STREAM_END) continue;
        if (gzip.empty()) return text;
        if (::inflateReset(&state) != Z_OK) break;  // gzip files may lie end to end
    }
    throw BadGzip("the gzip data is damaged or cut off");
}

}  // namespace rollring::cli
