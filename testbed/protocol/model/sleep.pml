/*
 * sleep.pml - how both sides go to sleep and wake each other, on a machine with store buffers.
 *
 * README.md maps each name to its C and says what is left out. SCENARIO says what the clients do,
 * DRIVER how they sleep; the WITHOUT_* each leave one step of the protocol out and must fail.
 * No wait has a time limit here, so a lost wake-up is a client that never ends: an invalid end state.
 */
#ifndef SCENARIO
#define SCENARIO 1
#endif

#if SCENARIO == 1 /* one thread: waiting calls and a one-way call */
#define CLIENTS 1
#define WORKERS 2
#define CAPACITY 3
#elif SCENARIO == 2 /* a call that blocks until another thread's call has run */
#define CLIENTS 2
#define WORKERS 2
#define CAPACITY 2
#elif SCENARIO == 3 /* one thread waits for ring space while another waits for an arena block */
#define CLIENTS 2
#define WORKERS 1
#define CAPACITY 1
#endif

#define PROCESSES (CLIENTS + WORKERS)
#define DEPTH 3 /* of a store buffer */

/* Shared memory. */
#define HEAD 0
#define TAIL 1
#define HOST_IDLE 2
#define SPACE_WAITING 3
#define NEXT 4 /* the worker's own tail, which threads without the role look at */
#define BUSY 5
#define PUBLISH_LOCK 6
#define READY(c) (7 + (c))
#define WAITING(c) (7 + CLIENTS + (c))
#define WORDS (7 + 2 * CLIENTS)
byte memory_of[WORDS];

/* Store buffers: first in, first out; a load sees its own thread's. */
byte buffered_at[PROCESSES * DEPTH];
byte buffered[PROCESSES * DEPTH];
byte used[PROCESSES];

inline store(at, value)
{
    atomic {
        used[me] < DEPTH;
        buffered_at[me * DEPTH + used[me]] = at;
        buffered[me * DEPTH + used[me]] = value;
        used[me]++
    }
}

inline load(at, to)
{
    atomic {
        to = memory_of[at];
        i = 0;
        do
        :: i < used[me] ->
            if
            :: buffered_at[me * DEPTH + i] == at -> to = buffered[me * DEPTH + i]
            :: else
            fi;
            i++
        :: else -> break
        od;
        i = 0
    }
}

inline fence()
{
    used[me] == 0
}

/* A store with a fence behind it, in one step: the thread does nothing between, so no order of events
 * is left out. What was buffered before drains in its own time. */
inline store_and_fence(at, value)
{
    atomic { used[me] == 0; memory_of[at] = value }
}

inline exchange(at, value, to)
{
    atomic { used[me] == 0; to = memory_of[at]; memory_of[at] = value }
}

inline add(at, change)
{
    atomic { used[me] == 0; memory_of[at] = memory_of[at] + change }
}

#define DRAIN(p)                                                                                   \
    d_step {                                                                                       \
        used[p] > 0;                                                                               \
        memory_of[buffered_at[(p) * DEPTH]] = buffered[(p) * DEPTH];                               \
        used[p]--;                                                                                 \
        i = 0;                                                                                     \
        do                                                                                         \
        :: i < used[p] ->                                                                          \
            buffered_at[(p) * DEPTH + i] = buffered_at[(p) * DEPTH + i + 1];                       \
            buffered[(p) * DEPTH + i] = buffered[(p) * DEPTH + i + 1];                             \
            i++                                                                                    \
        :: else -> break                                                                           \
        od;                                                                                        \
        buffered_at[(p) * DEPTH + i] = 0;                                                          \
        buffered[(p) * DEPTH + i] = 0;                                                             \
        i = 0                                                                                      \
    }

active proctype memory()
{
    byte i;
end_drained:
    do
    :: DRAIN(0)
    :: DRAIN(1)
    :: DRAIN(2)
#if PROCESSES > 3
    :: DRAIN(3)
#endif
#if PROCESSES > 4
    :: DRAIN(4)
#endif
    od
}

/* What requests are: written before head, so buffered no longer than it. */
#define ONEWAY 0
#define SYNC 1
#define BLOCKS 2 /* until somebody's SETS has run */
#define SETS 3
#define RELEASES 4 /* one way: clears the busy word of an arena block */
byte ring_kind[CAPACITY];
byte ring_client[CAPACITY];

/* Descriptors: the kernel keeps them, no store buffer there. */
bool notified; /* the notify eventfd, as the worker's one epoll sees it */
bool relayed;  /* the worker's own eventfd, likewise */
bool event_set;

/* ---- how a client sleeps ---- */

#ifdef DRIVER
bool queued[CLIENTS]; /* on the driver's wait queue: a wake reaches those that are on it, only */
#else
bool woken[CLIENTS]; /* the wake eventfd, as each client thread's own edge-triggered epoll sees it */
#endif

inline wake_clients()
{
    atomic {
#ifdef DRIVER
        queued[0] = false;
#if CLIENTS > 1
        queued[1] = false;
#endif
#else
        woken[0] = true;
#if CLIENTS > 1
        woken[1] = true;
#endif
#endif
    }
}

/* The driver returns when the word differs, and not before: the flag is not raised again meanwhile. */
inline sleep(at, old)
{
#ifdef DRIVER
    do
    :: true ->
        atomic { used[me] == 0; queued[me] = true };
        load(at, seen);
        if
        :: seen != old -> queued[me] = false; break
        :: else -> !queued[me]
        fi
    od
#else
    atomic { woken[me]; woken[me] = false }
#endif
}

#ifdef WITHOUT_COUNT
#define COUNTED(flag) false
#else
#define COUNTED(flag) ((flag) == SPACE_WAITING)
#endif
#ifdef WITHOUT_SEQUENCE
#define FLAG_OF(value) 1
#else
#define FLAG_OF(value) (value)
#endif

inline begin_waiting(flag)
{
    if
    :: COUNTED(flag) -> add(flag, 1)
    :: else ->
#ifdef WITHOUT_CLIENT_WAIT_FENCE
        store(flag, FLAG_OF(sequence + 1))
#else
        store_and_fence(flag, FLAG_OF(sequence + 1))
#endif
    fi
}

inline end_waiting(flag)
{
    if
    :: COUNTED(flag) -> add(flag, -1)
    :: else -> store(flag, 0)
    fi
}

inline wh_ring_wait(at, old, flag)
{
    do
    :: true ->
        load(at, seen);
        if
        :: seen != old -> break
        :: else
        fi;
        begin_waiting(flag);
#ifndef WITHOUT_CLIENT_RECHECK
        load(at, seen);
#endif
        if
        :: seen == old -> sleep(at, old)
        :: else
        fi;
        end_waiting(flag)
    od
}

/* ---- the client ---- */

inline publish(what)
{
    atomic { used[me] == 0 && !memory_of[PUBLISH_LOCK]; memory_of[PUBLISH_LOCK] = 1 };
    do
    :: true ->
#if SCENARIO != 2 /* there is room for all */
        load(TAIL, tail);
#endif
        load(HEAD, head);
        if
        :: head - tail < CAPACITY -> break
        :: else -> wh_ring_wait(TAIL, tail, SPACE_WAITING)
        fi
    od;
    atomic { ring_kind[head % CAPACITY] = what; ring_client[head % CAPACITY] = me };
    /* A mutex is let go with an exchange, which is a fence; C does not promise one, so none here. */
#ifdef WITHOUT_CLIENT_FENCE
    store(HEAD, head + 1);
    store(PUBLISH_LOCK, 0)
#else
    store_and_fence(HEAD, head + 1);
    store_and_fence(PUBLISH_LOCK, 0)
#endif
}

inline wh_take_flag(flag, taken)
{
    load(flag, taken);
    if
    :: taken -> exchange(flag, 0, taken)
    :: else
    fi
}

inline wh_take_flag_of(flag, value, taken)
{
    load(flag, taken);
    if
    :: taken == FLAG_OF(value) ->
        atomic {
            used[me] == 0;
            taken = (memory_of[flag] == FLAG_OF(value));
            if
            :: taken -> memory_of[flag] = 0
            :: else
            fi
        }
    :: else -> taken = 0
    fi
}

inline wh_ring_send(what)
{
    publish(what); /* and the fence of wh_ring_send */
    wh_take_flag(HOST_IDLE, taken);
    if
    :: taken -> d_step { notified = true; taken = 0; head = 0; tail = 0; seen = 0 }
    :: else -> d_step { head = 0; tail = 0; seen = 0 }
    fi
}

inline wh_ring_receive()
{
#if SCENARIO == 2 /* the hand-off alone; how a client sleeps for its reply is checked by scenario 1 */
    memory_of[READY(me)] != sequence;
#else
    wh_ring_wait(READY(me), sequence, WAITING(me));
#endif
    atomic { sequence++; seen = 0 }
}

proctype client(byte me)
{
    byte i, head, tail, seen, taken, sequence;
#if SCENARIO == 1
    wh_ring_send(SYNC);
    wh_ring_receive();
    wh_ring_send(ONEWAY);
    wh_ring_send(SYNC);
    wh_ring_receive();
#elif SCENARIO == 2
    if
    :: me == 0 ->
        wh_ring_send(BLOCKS);
        wh_ring_receive()
    :: else ->
        wh_ring_send(SETS);
        wh_ring_receive()
    fi;
#elif SCENARIO == 3
    if
    :: me == 0 ->
        wh_ring_send(ONEWAY);
        wh_ring_send(ONEWAY);
        wh_ring_send(RELEASES)
    :: else ->
        wh_ring_wait(BUSY, 1, SPACE_WAITING)
    fi;
#endif
    fence();
    seen = 0
}

/* ---- the worker ---- */

bool role;
byte published_tail; /* guarded by the role */
byte idle_count, thread_count;
byte answered[CLIENTS]; /* calls of each client; a request carries this number */

/* Stores the word that somebody may wait for, and its fence. */
inline wh_wake_if_space_wanted(at, value)
{
#ifdef WITHOUT_SPACE_FENCE
    store(at, value);
#else
    store_and_fence(at, value);
#endif
#ifndef WITHOUT_COUNT
    load(SPACE_WAITING, seen);
#else
    wh_take_flag(SPACE_WAITING, seen);
#endif
    if
    :: seen -> wake_clients(); seen = 0
    :: else
    fi
}

inline publish_tail()
{
    load(NEXT, next);
    if
    :: published_tail != next ->
        published_tail = next;
#if SCENARIO == 2 /* nobody waits for it */
        store_and_fence(TAIL, next)
#else
        wh_wake_if_space_wanted(TAIL, next)
#endif
    :: else
    fi
}

inline take_role(taken)
{
    taken = false;
    if
    :: role
    :: else ->
        atomic { used[me] == 0; taken = !role; role = true }
    fi;
    if
    :: taken -> store(HOST_IDLE, 0)
    :: else
    fi
}

inline ring_is_empty(none)
{
    load(HEAD, head);
    load(NEXT, next);
    none = (head == next)
}

inline free_role(more)
{
    publish_tail();
#ifdef WITHOUT_ORDER
    store_and_fence(HOST_IDLE, 1);
    role = false;
#else
    /* The role is let go with an exchange, which is a fence on this machine. */
    atomic { used[me] == 0; role = false };
#ifdef WITHOUT_WORKER_FENCE
    store(HOST_IDLE, 1);
#else
    store_and_fence(HOST_IDLE, 1);
#endif
#endif
#ifdef WITHOUT_WORKER_RECHECK
    more = false;
#else
    ring_is_empty(more);
    more = !more
#endif
}

inline ensure_follower()
{
#ifdef WITHOUT_FOLLOWER
    true
#else
    d_step {
        if
        :: idle_count == 0 && thread_count < WORKERS -> thread_count++; idle_count++
        :: else
        fi
    }
#endif
}

inline wh_ring_yield()
{
    ensure_follower();
    leads = false;
    free_role(more);
    if
#ifndef WITHOUT_RELAY
    :: more -> relayed = true
#endif
    :: else
    fi;
    more = false
}

inline send_reply(to)
{
    answered[to]++;
#ifdef WITHOUT_REPLY_FENCE
    store(READY(to), answered[to]);
#else
    store_and_fence(READY(to), answered[to]);
#endif
#if SCENARIO != 2
    wh_take_flag_of(WAITING(to), answered[to], seen);
    if
    :: seen -> wake_clients(); seen = 0
    :: else
    fi
#endif
}

inline handle()
{
    if
    :: kind == BLOCKS ->
        wh_ring_yield();
        event_set;
        take_role(leads);
        send_reply(from)
    :: kind == SETS ->
        event_set = true;
        send_reply(from)
    :: kind == SYNC -> send_reply(from)
    :: kind == RELEASES ->
        wh_wake_if_space_wanted(BUSY, 0)
    :: else
    fi
}

proctype worker(byte number)
{
    byte me = CLIENTS + number;
    byte i, head, next, seen, kind, from;
    bool leads, more, none;
end_not_created:
    thread_count > number;
again:
    take_role(leads);
    if
    :: !leads -> goto rest
    :: else
    fi;
    idle_count--;
lead:
    true;
    load(HEAD, head);
    load(NEXT, next);
    if
    :: head == next ->
        leads = false;
        free_role(more);
        if
        :: more -> more = false; take_role(leads)
        :: else
        fi
    :: else ->
#if SCENARIO == 3
        if
        :: publish_tail() /* it has lagged far enough */
        :: true
        fi;
#endif
        d_step {
            kind = ring_kind[next % CAPACITY];
            from = ring_client[next % CAPACITY]
        };
        store(NEXT, next + 1);
        handle();
        kind = 0;
        from = 0
    fi;
    if
    :: leads -> goto lead
    :: else
    fi;
    idle_count++;
    ring_is_empty(none);
    if
    :: !none -> goto again
    :: else
    fi;
rest:
    true;
    d_step { leads = false; more = false; none = false; head = 0; next = 0; seen = 0 };
end_asleep:
    atomic {
        if
        :: notified -> notified = false
        :: relayed -> relayed = false
        fi
    };
    goto again
}

init
{
    atomic {
        thread_count = 1;
        idle_count = 1;
        memory_of[BUSY] = 1;
        run client(0);
#if CLIENTS > 1
        run client(1);
#endif
        run worker(0);
#if WORKERS > 1
        run worker(1);
#endif
#if WORKERS > 2
        run worker(2);
#endif
    }
}
