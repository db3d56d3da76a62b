#pragma once
// The receiver beside one ring, as in python/rollring/integrations/ray: calls come over the link of
// its node, its process takes one after the other, and records go into their nodes' lanes as those
// have room.

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "events.hpp"
#include "rollouts.hpp"
#include "trainer_ring.hpp"

namespace bench::scale {

// Places that a node has in advance; where they are short, the node returns its unused ones.
struct Spare {
    std::uint32_t places = 0;
    bool is_short = false;
    std::uint32_t asked = 0;  // workers of the node that did since the answer before
};

// The records that are shipped together; none, to give places back.
struct Parcel {
    std::uint32_t node = 0;
    std::uint32_t ring = 0;
    std::uint32_t wanted = 0;  // places in advance
    Spare spare;               // once it has arrived
    std::uint64_t bytes = 0;
    std::vector<std::uint32_t> rollouts;
    std::size_t left = 0;  // that are not in the trainer's ring
};

struct AskCounts {
    std::uint64_t calls = 0;
    std::uint64_t refused_room = 0;    // at first
    std::uint64_t refused_places = 0;  // at first
};

class Receiver {
  public:
    using Answer = std::function<void()>;
    // All of a parcel is in the ring; a record came.
    struct Hears {
        std::function<void(Parcel&)> arrived;
        std::function<void()> came;
    };

    Receiver(const Settings& settings, std::uint32_t number, std::uint32_t batch_groups,
             Events& events, Rollouts& rollouts, Hears hears);

    // A worker of that node asks for a place for a group; `answer` comes when it has one.
    void ask(std::uint32_t node, std::uint32_t group, Answer answer);
    // A call that needs no place, for there is one.
    void ask_again(Answer answer);
    // Is on the node's link by now.
    void take(Parcel& parcel);
    // After the trainer has read, or given memory back: waiting nodes try again.
    void try_again();
    // The node is gone for good: its lane is given up, with the parcels that wait for it.
    void close(std::uint32_t node);

    [[nodiscard]] TrainerRing& ring() { return ring_; }
    [[nodiscard]] const AskCounts& asks() const { return asks_; }
    [[nodiscard]] std::uint64_t ring_bytes_most() const { return ring_bytes_most_; }
    // That had come, and were not in the ring.
    [[nodiscard]] std::uint64_t waiting_bytes_most() const { return waiting_bytes_most_; }
    void trained(std::uint64_t bytes) { ring_bytes_ -= bytes; }
    [[nodiscard]] std::uint64_t places_exceeded() const { return places_exceeded_; }

    Server link;     // of the trainer's node
    Server process;  // calls
    Server copies;   // into the ring

  private:
    struct Asked {
        std::uint32_t node;
        std::uint32_t group;
        Answer answer;
    };
    struct Waiting {
        std::uint32_t rollout;
        Parcel* parcel;
    };

    bool try_ask(const Asked& asked);
    void note_opened();
    // Groups that have a place, and of which the stash has read nothing.
    [[nodiscard]] std::uint64_t announced() const {
        return opened_ - cancelled_ - ring_.account().groups_opened;
    }
    void put(Parcel& parcel);
    void drain(std::uint32_t node);
    void keep_spare(std::uint32_t node);
    void answer(Parcel& parcel);

    const Settings* settings_;
    std::uint32_t number_;
    Events* events_;
    Rollouts* rollouts_;
    Hears hears_;
    TrainerRing ring_;
    std::deque<Asked> asked_;
    std::vector<std::deque<Waiting>> lanes_;
    std::vector<std::uint32_t> full_;  // lanes that had no room
    std::vector<bool> closed_;
    std::vector<std::uint32_t> wanted_;       // places in advance, by node
    std::vector<std::uint32_t> asked_since_;  // its answer before, by node
    AskCounts asks_;
    std::uint64_t opened_ = 0;
    std::uint64_t cancelled_ = 0;
    std::uint64_t places_exceeded_ = 0;
    std::uint64_t waiting_bytes_ = 0;
    std::uint64_t waiting_bytes_most_ = 0;
    std::uint64_t ring_bytes_ = 0;
    std::uint64_t ring_bytes_most_ = 0;
};

}  // namespace bench::scale
