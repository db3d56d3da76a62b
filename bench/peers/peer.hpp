#pragma once
// A peer of rollring: another way to move the same records between processes. One file per peer.

#include <string>
#include <vector>

#include "workload.hpp"

namespace bench {

struct PeerOptions {
    std::uint32_t n_tokens = 2048;
    std::uint64_t queue_bytes = std::uint64_t{4} << 20;
    std::string python = "python3";
    std::string script;        // bench/peers/peers.py
    double most_seconds = 20;  // of one run
};

struct Peer {
    std::string key;   // for --peers
    std::string name;  // for tables
    std::function<Measured(const Plan&, const Cpus&)> run = {};
    std::uint64_t first_records = 2000;  // to estimate its rate; a quarter more warm it up
    std::uint64_t unit = 1;              // the number of records is a multiple of it
    std::string missing = {};            // why it cannot run here
};

// A peer that began and could not go on: it is named and skipped. Wrong records end the program.
struct PeerProblem {
    std::string what;
};

void write_header(std::byte* to, std::uint64_t sequence, const Slice& slice);
// Sums a flat record and enters it into the consumer's book.
void check_flat(Meter& meter, const Flat& flat, const std::byte* from, std::uint32_t n_tokens);

// Each record is gathered into a buffer, passed to `send`, and read where `receive` has put it.
using Hand = std::function<void(Board&, std::span<std::byte>)>;
Transport buffer_transport(const std::string& name, const Hand& send, const Hand& receive);

std::vector<Peer> own_peers(const PeerOptions& options);     // rollring, the limit, memcpy
std::vector<Peer> stream_peers(const PeerOptions& options);  // UNIX socket, pipe
Peer boost_peer(const PeerOptions& options);
Peer zmq_peer(const PeerOptions& options);
Peer http_peer();
std::vector<Peer> python_peers(const PeerOptions& options);

}  // namespace bench
