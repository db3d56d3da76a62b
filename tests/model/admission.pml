/* Admission by bytes (docs/progress.md): PRODUCERS lanes, a spill, GROUPS groups of one member a
 * producer. Each producer sends its members in any order in which it may send them. A lane's share
 * is 0: whatever lies in a lane counts as owed.
 *
 * Safety: what is promised is never more than the room, and a record that keeps a producer waiting
 * always finds room in the spill. Progress: every run ends, with all groups shipped.
 *
 * Mistakes, each of which is found: CHECK_FIRST (counts before it claims), READ_FIRST (a claim
 * counts as read before the group counts as owed), HALF (a lane is relieved only while more than
 * half of it is held), SHORT_CLAIM (less than the longest member), KEEP_DEAD (a dead producer's
 * claims stay). */

#ifndef PRODUCERS
#define PRODUCERS 2
#endif
#ifndef GROUPS
#define GROUPS 3
#endif
#ifndef ROOM
#define ROOM 4
#endif
#ifndef LANE
#define LANE 3
#endif
#ifndef KILLS
#define KILLS 0
#endif
#define LONGEST 2
#define CLAIM (PRODUCERS * LONGEST)
#define PLACE(g, p) ((g) * PRODUCERS + (p))

mtype = { unsent, committed, in_lane, in_spill, gone };

mtype where[GROUPS * PRODUCERS];  /* the member of a group that a producer sends */
byte length[GROUPS * PRODUCERS];
byte sent_claim[GROUPS * PRODUCERS];

bool open[GROUPS];     /* the stash has it: anybody may send to it */
bool shipped[GROUPS];
bool announced[GROUPS * PRODUCERS];

byte claimed[PRODUCERS];  /* all of these have one writer */
byte read[PRODUCERS];
byte owed = 0;
byte spill = 0;
byte used[PRODUCERS];     /* bytes of a lane, read or not */
byte held[PRODUCERS];     /* of those, what was read and not released */
byte wants[PRODUCERS];
bool dead[PRODUCERS];
bool settled[PRODUCERS];
byte shipped_count = 0;
byte kills = 0;

inline total(sum) {
    sum = owed;
    j = 0;
    do
    :: j < PRODUCERS -> sum = sum + claimed[j] - read[j]; j++
    :: else -> break
    od
}

inline announce(g) {
#ifdef CHECK_FIRST
    total(sum);
    if
    :: sum + CLAIM <= ROOM || sum == 0 -> claimed[me] = claimed[me] + CLAIM; announced[PLACE(g, me)] = true
    :: else -> skip
    fi
#else
#ifdef PROGRESS
    atomic {  /* two that take their claims back for ever would need the same luck for ever */
#endif
    claimed[me] = claimed[me] + CLAIM;
    total(sum);
    if
    :: sum <= ROOM || sum == CLAIM -> announced[PLACE(g, me)] = true
    :: else -> claimed[me] = claimed[me] - CLAIM
    fi
#ifdef PROGRESS
    }
#endif
#endif
}

/* May be called for: not sent, and open, or announced, or worth a try. */
#define may_send(g) (where[PLACE(g, me)] == unsent && (open[g] || shipped[g] || announced[PLACE(g, me)]))
#define may_try(g) (where[PLACE(g, me)] == unsent && !open[g] && !shipped[g] && \
                    !announced[PLACE(g, me)] && (claims_now() + CLAIM <= ROOM || claims_now() == 0))
#if PRODUCERS == 2
#define claims_now() (owed + claimed[0] - read[0] + claimed[1] - read[1])
#else
#define claims_now() (owed + claimed[0] - read[0] + claimed[1] - read[1] + claimed[2] - read[2])
#endif

inline send(g) {
    if
    :: length[PLACE(g, me)] = 1
#ifdef SHORT_CLAIM
    :: length[PLACE(g, me)] = LONGEST + 1
#else
    :: length[PLACE(g, me)] = LONGEST
#endif
    fi;
    wants[me] = length[PLACE(g, me)];
    if
    :: used[me] + wants[me] <= LANE || dead[me]
    fi;
    atomic {
        if
        :: dead[me] -> skip
        :: else ->
            wants[me] = 0;
            used[me] = used[me] + length[PLACE(g, me)];
            sent_claim[PLACE(g, me)] = (announced[PLACE(g, me)] -> CLAIM : 0);
            where[PLACE(g, me)] = committed
        fi
    }
}

proctype producer(byte me) {
    byte sum, j;
end:
    do
    :: dead[me] -> break
    :: !dead[me] && may_send(0) -> send(0)
    :: !dead[me] && may_send(1) -> send(1)
#if GROUPS > 2
    :: !dead[me] && may_send(2) -> send(2)
#endif
    :: !dead[me] && may_try(0) -> announce(0)
    :: !dead[me] && may_try(1) -> announce(1)
#if GROUPS > 2
    :: !dead[me] && may_try(2) -> announce(2)
#endif
    od
}

/* Of a record that has been read: lies in a lane, whose share is 0, or in the spill. */
inline read_one(g, p) {
#ifdef READ_FIRST
    read[p] = read[p] + sent_claim[PLACE(g, p)];
    sent_claim[PLACE(g, p)] = 0;
#endif
    atomic {
        if
        :: shipped[g] ->
            used[p] = used[p] - length[PLACE(g, p)];
            where[PLACE(g, p)] = gone
        :: else ->
            if
            :: !open[g] -> open[g] = true; owed = owed + CLAIM
            :: else -> skip
            fi;
            owed = owed - LONGEST + length[PLACE(g, p)];
            held[p] = held[p] + length[PLACE(g, p)];
            where[PLACE(g, p)] = in_lane
        fi
    };
    read[p] = read[p] + sent_claim[PLACE(g, p)];
    sent_claim[PLACE(g, p)] = 0;
    assert(claims_now() <= ROOM + CLAIM * PRODUCERS)
}

#define over(g, p) (where[PLACE(g, p)] == in_lane || where[PLACE(g, p)] == in_spill || \
                    (settled[p] && where[PLACE(g, p)] == unsent))
#if PRODUCERS == 2
#define complete(g) (open[g] && !shipped[g] && over(g, 0) && over(g, 1))
#else
#define complete(g) (open[g] && !shipped[g] && over(g, 0) && over(g, 1) && over(g, 2))
#endif

inline ship(g) {
    atomic {
        j = 0;
        do
        :: j < PRODUCERS ->
            if
            :: where[PLACE(g, j)] == in_lane ->
                owed = owed - length[PLACE(g, j)];
                held[j] = held[j] - length[PLACE(g, j)];
                used[j] = used[j] - length[PLACE(g, j)];
                where[PLACE(g, j)] = gone
            :: where[PLACE(g, j)] == in_spill ->
                owed = owed - length[PLACE(g, j)];
                spill = spill - length[PLACE(g, j)];
                where[PLACE(g, j)] = gone
            :: else -> owed = owed - LONGEST  /* will not come */
            fi;
            j++
        :: else -> break
        od;
        open[g] = false;
        shipped[g] = true;
        shipped_count++
    };
progress_shipped: skip
}

/* The producer of the lane waits for more than is free there. */
#ifdef HALF
#define blocked(p) (wants[p] != 0 && used[p] + wants[p] > LANE && held[p] * 2 > LANE)
#else
#define blocked(p) (wants[p] != 0 && used[p] + wants[p] > LANE && held[p] != 0)
#endif

inline relieve(g, p) {
    atomic {
        assert(spill + length[PLACE(g, p)] <= ROOM);
        spill = spill + length[PLACE(g, p)];
        held[p] = held[p] - length[PLACE(g, p)];
        used[p] = used[p] - length[PLACE(g, p)];
        where[PLACE(g, p)] = in_spill
    }
}

#define drained(p) (where[PLACE(0, p)] != committed && where[PLACE(1, p)] != committed && \
                    (GROUPS < 3 || where[PLACE(GROUPS - 1, p)] != committed))

proctype stash() {
    byte g, p, j;
    do
    :: atomic { shipped_count == GROUPS -> break }
    :: else ->
        select(g : 0 .. GROUPS - 1);
        select(p : 0 .. PRODUCERS - 1);
        if
        :: where[PLACE(g, p)] == committed -> read_one(g, p)
        :: where[PLACE(g, p)] == in_lane && blocked(p) && !complete(g) -> relieve(g, p)
        :: complete(g) -> ship(g)
        :: dead[p] && !settled[p] && drained(p) ->
            atomic {
#ifndef KEEP_DEAD
                claimed[p] = read[p];
#endif
                settled[p] = true
            }
        :: atomic { !open[g] && !shipped[g] && settled[0] && settled[1] &&
                    where[PLACE(g, 0)] == unsent && where[PLACE(g, 1)] == unsent ->
                    shipped[g] = true; shipped_count++ }  /* never begun, and nobody will */
        :: else -> skip
        fi
    od
}

proctype killer() {
end:
    do
    :: kills < KILLS -> kills++; dead[kills - 1] = true
    :: else -> break
    od
}

init {
    byte i;
    atomic {
        for (i : 0 .. GROUPS * PRODUCERS - 1) { where[i] = unsent };
        run producer(0);
        run producer(1);
#if PRODUCERS > 2
        run producer(2);
#endif
        run stash();
        run killer()
    }
}
