// Goal: a trainer's batches come back from a recording bit for bit, whole or not at all: over
// restarts, from bounded directories, with other columns, and while it is being written.
#include "rollring/extras/recording.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "recorded.hpp"
#include "support/in_child.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

template <class T>
bool failed_with(const Result<T>& result, Errc code) {
    return !result && result.error().code == code && !result.error().message.empty();
}

}  // namespace

TEST_CASE("recording: batches come back with their bytes, order, rewards and advantages") {
    const Folder folder;
    std::vector<std::string> prints;
    {
        Run run;
        RecordingWriter writer = open_writer(folder.path());
        prints = run.record(writer, 5);
        REQUIRE(writer.sync().has_value());
    }
    const Recording recording = open_recording(folder.path());
    CHECK(recording.problem().empty());
    REQUIRE(recording.batches().size() == 5);
    for (std::size_t i = 0; i < 5; i++) {
        const RecordedInfo& info = recording.batches()[i];
        CHECK(info.number == i);
        CHECK(info.step == static_cast<std::int64_t>(i));
        CHECK(info.groups == 1);
        CHECK(info.sequences == 2);
        CHECK(info.tokens == 2 * (5 + 7 * (i + 1)));
        CHECK(info.recorded_ns > 0);
        CHECK(recording.find_step(static_cast<std::int64_t>(i)) == std::vector<std::size_t>{i});
    }
    CHECK(recording.find_step(5).empty());
    CHECK(good_batches(recording, prints) == 5);
    const auto batch = recording.read(3);
    REQUIRE(batch.has_value());
    CHECK(batch->leased());
    CHECK(batch->advantages()[0] != 0);
    const auto alone = Recording::open(folder.files().at(0));
    REQUIRE(alone.has_value());
    CHECK(alone->batches().size() == 5);
}

TEST_CASE("recording: groups with failed members, missing rewards and NaN come back as they were") {
    const Folder folder;
    StashOptions options;
    options.group_size = 4;
    options.batch = BatchTarget::groups(1);
    options.bad_reward = BadReward::absent;
    Run run(options);
    const std::optional<double> rewards[] = {1.5, std::nullopt,
                                             std::numeric_limits<double>::quiet_NaN()};
    for (std::uint32_t i = 0; i < 3; i++) {
        REQUIRE(send(run.producer(), {.repetition = i, .reward = rewards[i]}) == Push::ok);
    }
    Draft mark("prompt");
    mark.meta.repetition_id = 3;
    mark.meta.status = Status::failed;
    REQUIRE(run.producer().push(mark, patience()) == Push::ok);
    Batch batch;
    REQUIRE(run.stash().next(batch, patience()) == NextBatch::batch);
    REQUIRE(batch.groups()[0].members == 3);
    REQUIRE(batch.groups()[0].bad_rewards == 1);
    RecordingWriter writer = open_writer(folder.path());
    REQUIRE(writer.add(batch).has_value());
    const Recording recording = open_recording(folder.path());
    const auto again = recording.read(0);
    REQUIRE(again.has_value());
    CHECK(fingerprint(*again, recording.schema()) == fingerprint(batch, run.stash().schema()));
    CHECK_FALSE(recording.batches()[0].step.has_value());
    CHECK(std::isnan(again->rewards()[1]));
}

TEST_CASE("recording: a group that no stash has formed is one batch, as a stash would have it") {
    const Folder folder;
    Run run;
    const Batch& batch = run.next();
    RecordingWriter writer = open_writer(folder.path());
    const TrajectoryView* const records[] = {&batch.sequences()[1].view,
                                             &batch.sequences()[0].view};
    CHECK(writer.add_group(records, 2).value_or(9) == 0);
    CHECK(failed_with(writer.add_group({}, 2), Errc::invalid_argument));
    const Recording recording = open_recording(folder.path());
    const auto again = recording.read(0);
    REQUIRE(again.has_value());
    CHECK(fingerprint(*again, recording.schema()) == fingerprint(batch, run.stash().schema()));
}

TEST_CASE("recording: columns of a ring's own are in it, and another ring's are refused") {
    const Folder folder;
    const auto schema = Schema::standard_with(
        {{.name = "entropy", .dtype = dtype_f32},
         {.name = "pixels", .dtype = dtype_u8, .per = Per::record, .accepts = Accepts::any},
         {.name = "pairs", .dtype = dtype_i64, .accepts = Accepts::any_integer, .dims = {2, 0}}});
    REQUIRE(schema.has_value());
    const TestRing ring({.lanes = 2, .lane_bytes = 1 << 20, .schema = *schema});
    Producer producer = ring.producer();
    auto stash = open_stash(ring, freshest_pair);
    const std::vector<std::int32_t> ids = {1, 2, 3};
    const std::vector<float> entropy = {0.5F, 0.25F, 0};
    for (std::uint32_t i = 0; i < 2; i++) {
        Draft draft("prompt");
        draft.meta.repetition_id = i;
        draft.set(Std::token_ids, ids);
        draft.add({*schema->find("entropy"), dtype_f32, {3}, 1, entropy.data()});
        REQUIRE(producer.push(draft, patience()) == Push::ok);
    }
    Batch batch;
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    {
        RecordingWriter writer = open_writer(folder.path(), {}, *schema);
        REQUIRE(writer.add(batch).has_value());
    }
    const Recording recording = open_recording(folder.path());
    CHECK(recording.schema().id() == schema->id());
    const auto again = recording.read(0);
    REQUIRE(again.has_value());
    CHECK(fingerprint(*again, recording.schema()) == fingerprint(batch, *schema));
    CHECK(failed_with(RecordingWriter::open(folder.path(), Schema::standard()),
                      Errc::layout_mismatch));

    const Folder other;
    RecordingWriter writer = open_writer(other.path());
    CHECK(failed_with(writer.add(batch), Errc::bad_record));
    CHECK(open_recording(other.path()).batches().empty());
}

TEST_CASE("recording: one writer at a time, and the next one continues its numbers") {
    const Folder folder;
    Run run;
    std::vector<std::string> prints;
    {
        RecordingWriter writer = open_writer(folder.path());
        CHECK(failed_with(RecordingWriter::open(folder.path(), Schema::standard()), Errc::busy));
        CHECK(in_child([&] { return failed_with(writer.sync(), Errc::forked) ? 0 : 1; }) == 0);
        prints = run.record(writer, 2);
    }
    RecordingWriter next = open_writer(folder.path());
    for (const std::string& print : run.record(next, 3)) prints.push_back(print);
    const Recording recording = open_recording(folder.path());
    REQUIRE(recording.batches().size() == 5);
    CHECK(recording.batches()[4].number == 4);
    CHECK(good_batches(recording, prints) == 5);
    CHECK(folder.files().size() == 2);
}

TEST_CASE("recording: the numbers go on behind a writer that died before its first byte") {
    const Folder folder;
    Run run;
    {
        RecordingWriter writer = open_writer(folder.path());
        static_cast<void>(run.record(writer, 2));
    }
    write_bytes(folder.path() / "00000002.rollouts", {});
    RecordingWriter writer = open_writer(folder.path());
    CHECK(writer.add(run.next()).value_or(9) == 2);
    CHECK(open_recording(folder.path()).batches().size() == 3);
}

TEST_CASE("recording: a bounded one loses its oldest files, and no batch in part") {
    const Folder folder;
    Run run;
    RecordingWriter writer = open_writer(folder.path(), {.file_bytes = 4096, .max_bytes = 40'000});
    const auto prints = run.record(writer, 40);
    CHECK(writer.bytes() <= 40'000 + 4096);
    const Recording recording = open_recording(folder.path());
    REQUIRE(recording.batches().size() > 2);
    CHECK(recording.batches().size() < 40);
    CHECK(recording.batches().back().number == 39);
    CHECK(good_batches(recording, prints) == recording.batches().size());
    CHECK(recording.batches().back().step == 39);
    static_cast<void>(run.record(writer, 40));
    CHECK(failed_with(recording.read(0), Errc::not_found));
}

TEST_CASE("recording: a reader of a recording that is being written sees what is added") {
    const Folder folder;
    Run run;
    RecordingWriter writer = open_writer(folder.path(), {.file_bytes = 4096});
    Recording recording = open_recording(folder.path());
    CHECK(recording.batches().empty());
    auto prints = run.record(writer, 1);
    const auto unacked = writer.add(run.next());
    REQUIRE(unacked.has_value());
    REQUIRE(recording.refresh().has_value());
    REQUIRE(recording.batches().size() == 2);
    CHECK_FALSE(recording.batches()[1].step.has_value());
    REQUIRE(writer.acked(*unacked, 812).has_value());
    for (int i = 0; i < 20; i++) static_cast<void>(run.record(writer, 1));
    REQUIRE(recording.refresh().has_value());
    CHECK(recording.batches().size() == 22);
    CHECK(recording.find_step(812) == std::vector<std::size_t>{1});
    CHECK(folder.files().size() > 2);
    CHECK(recording.problem().empty());
}

TEST_CASE("recording: other files and folders are refused by name") {
    const Folder folder;
    CHECK(failed_with(Recording::open(folder.path()), Errc::not_a_ring));
    CHECK(failed_with(Recording::open(folder.path() / "none"), Errc::not_found));
    write_bytes(folder.path() / "00000001.rollouts", std::vector<char>(4096, 'x'));
    CHECK(failed_with(Recording::open(folder.path()), Errc::not_a_ring));
    CHECK(failed_with(Recording::open(folder.path() / "00000001.rollouts"), Errc::not_a_ring));
    CHECK(
        failed_with(RecordingWriter::open(folder.path() / "00000001.rollouts", Schema::standard()),
                    Errc::invalid_argument));
    CHECK(failed_with(RecordingWriter::open(folder.path(), Schema::standard(), {.file_bytes = 0}),
                      Errc::invalid_argument));
}
