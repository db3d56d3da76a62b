#pragma once
// The REST surface of Atropos' server (atroposlib 0.4.0), in front of a hub: paths, requests and
// responses, as JSON. docs/atropos.md lists where the answers differ, and why.

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>

#include "cli/http/http_server.hpp"
#include "integrations/atropos/atropos_hub.hpp"

namespace rollring::cli {

class AtroposApi {
  public:
    explicit AtroposApi(AtroposHub& hub) : hub_(&hub), run_id_(draw_run_id()) {}

    // Thread-safe.
    HttpAnswer answer(const HttpRequest& request);

  private:
    HttpAnswer register_trainer(const HttpRequest& request);
    HttpAnswer register_env(const HttpRequest& request);
    HttpAnswer disconnect_env(const HttpRequest& request);
    HttpAnswer wandb_info(const HttpRequest& request);
    HttpAnswer info(const HttpRequest& request);
    HttpAnswer batch(const HttpRequest& request);
    HttpAnswer latest_example(const HttpRequest& request);
    HttpAnswer scored_data(const HttpRequest& request);
    HttpAnswer scored_data_list(const HttpRequest& request);
    HttpAnswer status(const HttpRequest& request);
    HttpAnswer status_env(const HttpRequest& request);
    HttpAnswer reset_data(const HttpRequest& request);
    HttpAnswer root(const HttpRequest& request);
    HttpAnswer rollring(const HttpRequest& request);

    // Sends whole groups, in their order.
    HttpAnswer send(const HttpRequest& request, bool list);

    // The number of groups of this body already in the ring, so that a retried post sends none
    // twice.
    std::size_t taken_of(const GroupKey& body);
    void remember(const GroupKey& body, std::size_t taken);

    struct Route;
    static const Route* find(const HttpRequest& request, bool& other_method);

    AtroposHub* hub_;
    std::string run_id_;
    std::atomic<std::uint64_t> bodies_ = 0;
    std::mutex latest_mutex_;
    std::string latest_;  // the last group, as it was posted
    struct Begun {
        GroupKey body;  // a hash of it
        std::size_t taken;
    };
    std::mutex begun_mutex_;
    std::deque<Begun> begun_;
};

}  // namespace rollring::cli
