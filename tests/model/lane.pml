/* One lane and its two bells, for Spin: a second tool beside the explorer, with a model written by
   hand. Everything is sequentially consistent here; memory orders are the explorer's.

   A producer and a consumer, each of which may be killed at the points marked KILLED and is
   followed by a successor that knows what lies in shared memory and nothing else. They sleep as
   doorbell.hpp does it. A sleep ends by a wake; once somebody has been killed, also by itself, as
   all sleeps do after 100 ms: without a death no wake may be lost.

   RECORDS, CELLS, KILLS: the size of it. NO_SECOND_LOOK, LATE_CLEAR, WAKE_FIRST, EARLY_RELEASE,
   EARLY_COMMIT: mistakes that must be found. */

#define CONSUMER 0
#define PRODUCER 1

byte tail, head;     /* records committed; released */
byte cell[CELLS];    /* 1 + the record that lies there */
byte sequence[2];    /* of the bell that this one sleeps on; modulo 8 */
bit waiting[2];
bit asleep[2];
byte kills = KILLS;
bit killed;

#define KILLED if :: atomic { kills > 0 -> kills--; killed = 1 }; goto successor :: true fi

inline ring(whose) {
#ifdef LATE_CLEAR
    if
    :: waiting[whose] -> sequence[whose] = (sequence[whose] + 1) % 8; KILLED; asleep[whose] = 0; KILLED; waiting[whose] = 0
#else
    if
    :: waiting[whose] -> waiting[whose] = 0; KILLED; sequence[whose] = (sequence[whose] + 1) % 8; KILLED; asleep[whose] = 0
#endif
    :: else
    fi
}

inline sleep_while(nothing, whose) {
    seen = sequence[whose];
    KILLED;
    waiting[whose] = 1;
    KILLED;
    if
#ifdef NO_SECOND_LOOK
    :: true ->
#else
    :: nothing ->
#endif
        atomic { if :: sequence[whose] == seen -> asleep[whose] = 1 :: else fi };
        (asleep[whose] == 0 || killed);
        asleep[whose] = 0
#ifndef NO_SECOND_LOOK
    :: else
#endif
    fi;
    waiting[whose] = 0
}

active proctype Producer() {
    byte at, seen;
successor:
    asleep[PRODUCER] = 0;
    at = tail;
    do
    :: at == RECORDS -> break
    :: at < RECORDS && at - head >= CELLS -> sleep_while(at - head >= CELLS, PRODUCER)
    :: at < RECORDS && at - head < CELLS ->
#ifdef WAKE_FIRST
        ring(CONSUMER);
#endif
#ifdef EARLY_COMMIT
        tail = at + 1;
        KILLED;
        cell[at % CELLS] = at + 1;
#else
        cell[at % CELLS] = at + 1;
        KILLED;
        tail = at + 1;
#endif
        at++;
        KILLED;
#ifndef WAKE_FIRST
        ring(CONSUMER)
#endif
    od
}

active proctype Consumer() {
    byte at, seen;
successor:
    asleep[CONSUMER] = 0;
    at = head;
    do
    :: at == RECORDS -> break
    :: at < RECORDS && at == tail -> sleep_while(at == tail, CONSUMER)
    :: at < tail ->
#ifdef EARLY_RELEASE
        head = at + 1;
#endif
        assert(cell[at % CELLS] == at + 1);
        KILLED;
        assert(cell[at % CELLS] == at + 1); /* held, and nobody wrote over it */
#ifndef EARLY_RELEASE
        assert(head == at);
progress:
        head = at + 1;
#endif
        at++;
        KILLED;
        ring(PRODUCER)
    od
}
