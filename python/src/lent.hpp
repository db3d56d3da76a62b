#pragma once
// Records that Python looks at in place: those of a leased batch, or of a rank's share of one.

#include <string>

#include "rollring/sequences.hpp"
#include "window.hpp"

namespace rollring::python {

class Lent : public Loan {
  public:
    // Raises where what it shows may be another record by now.
    [[nodiscard]] const Sequences& shown() const {
        check_shown();
        return all();
    }
    [[nodiscard]] virtual bool leased() const = 0;
    [[nodiscard]] virtual const Schema& schema() const = 0;

    [[nodiscard]] bool in_use() const { return windows() > 0 || copies_ > 0; }
    [[nodiscard]] std::string use_text() const {
        return windows() > 0 ? windows_text() + " still in use" : "another thread copies from it";
    }
    // Around a copy without the GIL.
    void begin_copy() { copies_++; }
    void end_copy() {
        copies_--;
        on_free();  // what was put off while it ran
    }

  protected:
    virtual void check_shown() const = 0;
    [[nodiscard]] virtual const Sequences& all() const = 0;
    [[nodiscard]] std::string name_of(std::uint16_t column, std::size_t item) const override {
        const std::string& name = schema().columns()[column].name;
        if (inherited()) return name;  // the parent may have given the record back
        const TrajectoryView& view = all().sequences()[item].view;
        return name + " of '" + std::string(view.instance_id()) + "', repetition " +
               std::to_string(view.meta().repetition_id);
    }

  private:
    int copies_ = 0;  // that are under way
};

}  // namespace rollring::python
