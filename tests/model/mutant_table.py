"""The breaks that mutants.py makes. `old` must occur exactly once in the header."""
from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    header: str
    old: str
    new: str
    survives: str = ""  # why the explorer cannot tell the difference


WRITER = [
    ("the tail is stored before the frame is written",
     "        frames_.write(offset(), frame);\n        advance(frame.bytes);\n",
     "        shared_tail_->store(tail_ + frame.bytes, Order::store_tail);\n"
     "        frames_.write(offset(), frame);\n        advance(frame.bytes);\n"),
    ("a wrap leaves no skip frame",
     "        frames_.write(offset(), frame);\n        advance(bytes);\n",
     "        advance(bytes);\n"),
    ("no spare line below the head",
     "if (head_offset - t >= bytes + line_bytes) return Reserve::ok;",
     "if (head_offset - t >= bytes) return Reserve::ok;"),
    ("a jump lands on the skip that is still live",
     "dead_from_ = t + line_bytes;", "dead_from_ = t;"),
    ("a jump whatever it costs",
     "std::max(bytes, dead_from_ - t)", "bytes"),
    ("a soft wrap without asking for room",
     "head_offset >= std::max(bytes + line_bytes, t / 2)", "head_offset >= t / 2"),
    ("two laps behind is not full",
     "if (lap_start_ - head_ > capacity_) return Reserve::full;", ""),
    ("having jumped is not seen",
     "if (t > head_offset) {  // has jumped", "if (false) {"),
    ("the dead part outlives its lap",
     "            dead_from_ = capacity_;\n", ""),
    ("full does not show",
     "            if (found == Reserve::full) show();\n", ""),
    ("a successor starts at the lane's start",
     "lap_start_(tail_ - tail_ % capacity_)", "lap_start_(tail_)"),
]

READER = [
    ("the bits are cleared before the cursor moves",
     "                shared_cursor_->store(at, Order::store_cursor);\n"
     "                clear({from, at - from});\n",
     "                clear({from, at - from});\n"
     "                shared_cursor_->store(at, Order::store_cursor);\n"),
    ("the head is stored before the bits below it are cleared",
     "                clear({from, at - from});\n",
     "                shared_head_->store(at, Order::store_head);\n"
     "                head_ = at;\n"
     "                clear({from, at - from});\n"),
    ("the head is stored before the cursor",
     "        shared_cursor_->store(cursor_ + span.bytes, Order::store_cursor);\n",
     "        shared_head_->store(cursor_ + span.bytes, Order::store_head);\n"
     "        shared_cursor_->store(cursor_ + span.bytes, Order::store_cursor);\n"),
    ("bits are set from the first line to the last",
     "        while (end > first) {\n"
     "            const std::uint64_t word = (end - 1) / word_bits;\n"
     "            const std::uint64_t from = std::max(first, word * word_bits);\n"
     "            const std::uint64_t old = bits_[word].load(Order::recover);\n"
     "            bits_[word].store(old | mask(from % word_bits, end - from), Order::store_bits);\n"
     "            end = from;\n"
     "        }\n",
     "        for (std::uint64_t from = first; from < end;) {\n"
     "            const std::uint64_t word = from / word_bits;\n"
     "            const std::uint64_t to = std::min(end, (word + 1) * word_bits);\n"
     "            const std::uint64_t old = bits_[word].load(Order::recover);\n"
     "            bits_[word].store(old | mask(from % word_bits, to - from), Order::store_bits);\n"
     "            from = to;\n"
     "        }\n"),
    ("recovery leaves the bits below the cursor",
     "if (!is_skip(frame)) clear({read_, frame.bytes});", ""),
    ("recovery clears the bits under a skip",
     "if (!is_skip(frame)) clear({read_, frame.bytes});", "clear({read_, frame.bytes});"),
    ("recovery gives memory back before the bits are cleared",
     "        for (read_ = head_; read_ < cursor_;) {\n",
     "        read_ = head_;\n        store_head();\n        for (; read_ < cursor_;) {\n"),
    ("release forgets the bits that a predecessor has set",
     "        if (span.position < recovered_to_) clear(span);\n", ""),
    ("poll delivers what a predecessor released",
     "if (at < recovered_to_ && bit(size_.offset(at))) {", "if (false) {"),
    ("a run of bits goes on past the lane's end",
     "std::min(size_.bytes() - offset, read_ - at)", "read_ - at"),
    ("a skip in front of the cursor is not passed",
     "                if (cursor_ == at) move_cursor(at);\n"
     "                continue;\n            }\n            if (at",
     "                continue;\n            }\n            if (at"),
    ("a skip is not remembered",
     "if (!remember_skip({at, frame.bytes})) return LanePoll::bad_frame;", ""),
    ("a skip is never forgotten",
     "                forget_skip();\n", ""),
    ("start_over leaves bits behind",
     "for (std::uint64_t i = 0; i < words; i++) bits_[i].store(0, Order::store_bits);", ""),
    ("start_over gives memory back at the old place",
     "const std::uint64_t fresh = (highest / size_.bytes() + 4) * size_.bytes();",
     "const std::uint64_t fresh = cursor_;"),
]

JOURNAL = [
    ("the count is stored before the entries",
     "        for (std::uint64_t i = 0; i < records.size(); i++) entries_.write(i, records[i]);\n"
     "        step_->store(step, Order::store_journal);\n"
     "        count_->store(records.size(), Order::store_journal);\n",
     "        step_->store(step, Order::store_journal);\n"
     "        count_->store(records.size(), Order::store_journal);\n"
     "        for (std::uint64_t i = 0; i < records.size(); i++) entries_.write(i, records[i]);\n"),
    ("the step is stored after the count",
     "        step_->store(step, Order::store_journal);\n"
     "        count_->store(records.size(), Order::store_journal);\n",
     "        count_->store(records.size(), Order::store_journal);\n"
     "        step_->store(step, Order::store_journal);\n"),
    ("the journal is cleared before the records are marked",
     "        for (std::uint64_t i = 0; i < count; i++) mark(entries_.read(i));\n",
     "        count_->store(0, Order::store_journal);\n"
     "        for (std::uint64_t i = 0; i < count; i++) mark(entries_.read(i));\n"),
    ("the journal is cleared before its step is known",
     "        if (step >= 0) last_acked_step_->store(step, Order::store_journal);\n"
     "        count_->store(0, Order::store_journal);\n",
     "        count_->store(0, Order::store_journal);\n"
     "        if (step >= 0) last_acked_step_->store(step, Order::store_journal);\n"),
    ("recovery does not replay",
     "if (count == 0 || count > entries_max_) return 0;", "return 0;"),
]

BELL = [
    ("ringing does not change the sequence",
     "        sequence_->fetch_add(1, std::memory_order_acq_rel);\n", ""),
    ("waiting is cleared after the sequence changed",
     "        waiting_->store(0, std::memory_order_relaxed);\n"
     "        sequence_->fetch_add(1, std::memory_order_acq_rel);\n",
     "        sequence_->fetch_add(1, std::memory_order_acq_rel);\n"
     "        waiting_->store(0, std::memory_order_relaxed);\n"),
    ("the sequence is read after saying that one waits",
     "        const std::uint32_t seen = sequence_->load(std::memory_order_acquire);\n"
     "        waiting_->store(1, Order::bell_waiting);\n",
     "        waiting_->store(1, Order::bell_waiting);\n"
     "        const std::uint32_t seen = sequence_->load(std::memory_order_acquire);\n"),
]

SURVIVING = [
    Mutant("mark() sets bits below the cursor", "reader",
           "if (span.position < cursor_) {", "if (false) {",
           "from the journal's commit point until it is cleared the cursor does not move; the "
           "check is for a caller who releases twice"),
    Mutant("the sequence is read relaxed", "bell",
           "sequence_->load(std::memory_order_acquire)",
           "sequence_->load(std::memory_order_relaxed)",
           "a blind spot, not an equivalence: the store to `waiting` may then move in front of the "
           "load, which is another mutant above; the explorer never moves a store before a load"),
]

MUTANTS = [Mutant(name, header, old, new)
           for header, table in (("writer", WRITER), ("reader", READER), ("journal", JOURNAL),
                                 ("bell", BELL))
           for name, old, new in table] + SURVIVING
