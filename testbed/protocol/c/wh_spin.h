/*
 * wh_spin.h - how long a side spins before it sleeps: up to a bound, and less where it has learned
 * that the bound is not enough. Used by both sides, over both transports.
 *
 * To sleep and to be woken costs more than to spin for as long: so the bound is generous. But a
 * wait that outlasts it has spun for nothing, and for worse than that where somebody else could
 * have had the processor: the worker, or the kernel that is waited for. So after such a wait the
 * next ones spin for a moment only, one of them first, then 3, 7 and at most 15 in a row, until
 * one is over while it spins. Whoever waits for long things thus spins for the whole bound once in
 * 16 waits.
 */
#ifndef WH_SPIN_H
#define WH_SPIN_H

#include <stdbool.h>
#include <stdint.h>

#define WH_SPIN_SHORT_MAX 15    /* short waits in a row */
#define WH_SPIN_SHORT_SHARE 16u /* of the bound: what they spin */

/* How the latest waits of one kind went. Zero: nothing is known. One thread's at a time. */
struct wh_spin_habit {
    uint8_t row;  /* how many short ones follow the latest whole bound in vain */
    uint8_t left; /* of them */
};

static inline uint64_t wh_spin_bound(const struct wh_spin_habit *habit, uint64_t bound_ticks)
{
    return habit->left > 0 ? bound_ticks / WH_SPIN_SHORT_SHARE : bound_ticks;
}

/* What the wait came to: `found` while it spun, or not. */
static inline void wh_spin_ended(struct wh_spin_habit *habit, bool found)
{
    if (found) {
        *habit = (struct wh_spin_habit){0};
    } else if (habit->left > 0) {
        habit->left--;
    } else {
        habit->row =
            habit->row < WH_SPIN_SHORT_MAX ? (uint8_t)(habit->row * 2 + 1) : WH_SPIN_SHORT_MAX;
        habit->left = habit->row;
    }
}

#endif
