/* Admission by bytes and evacuation (docs/progress.md), for Spin: producers with a lane each, and a
   stash with a spill. A record takes one unit. Group g has MEMBERS records; its member m is sent by
   producer (g + m) % PRODUCERS, who sends its records in any order, but only what may be sent
   (Producer::may_send). Shared words are accessed in one order for all, as in the code.

   What each does is named after the functions: a producer claims (Admission::claim), its frames say
   what it had claimed by then (Admission::note_sent), the stash owes first and counts as read then
   (Stash::Impl::Turn::show_admitted). A producer that waits for its lane says so, and the stash moves the
   oldest records of that lane to the spill (evacuation.cpp). With DEATHS producer 0 may die at any
   step; its claims are written off with its lane, and groups end without its records, as by deadline.

   Checked: groups that were let in never need more than the room, or there is one alone; the spill
   never takes more than it has; the only end is the one in which all groups are over.

   Mistakes that must be found: COUNT_FIRST, READ_FIRST, NO_TAKE_BACK, CLAIM_ONE (for the record at
   hand, not for its group), NO_RELIEF, NO_WRITE_OFF (of what the dead had claimed), FIXED_ORDER (the
   circle that docs/progress.md names: a producer waits to send one record while it has others). */

#ifndef PRODUCERS
#define PRODUCERS 2
#endif
#ifndef GROUPS
#define GROUPS 3
#endif
#ifndef LANE
#define LANE 2 /* units of each lane */
#endif
#ifndef SPILL
#define SPILL 2 /* units of the spill: the room */
#endif
#ifndef DEATHS
#define DEATHS 0
#endif

#define RECORDS 6
#define MEMBERS (RECORDS / GROUPS)
#define GROUP(r) ((r) % GROUPS)
#define SENDER(r) ((GROUP(r) + (r) / GROUPS) % PRODUCERS)
#define CELL(p, k) ((p) * RECORDS + (k))
#ifdef CLAIM_ONE
#define NEED 1
#else
#define NEED MEMBERS
#endif

/* Shared words. */
byte claimed[PRODUCERS]; /* LaneOwner::lines_claimed */
byte marked[PRODUCERS];  /* ReaderEntry::lines_arrived */
byte owed;               /* ReaderControl::owed_bytes */
bit known[GROUPS];       /* its key is on the board: whoever has a member may send it */
bit over[GROUPS];        /* trained on; its key is still on the board */
bit waits[PRODUCERS];    /* for room in its lane */

/* The lanes: which record, what its frame says, and whether it has left. */
byte record[PRODUCERS * RECORDS];
byte frame[PRODUCERS * RECORDS];
bit left[PRODUCERS * RECORDS];
byte tail[PRODUCERS]; /* the oldest that is still there */
byte seen[PRODUCERS]; /* the next that the stash reads */
byte head[PRODUCERS];

/* What the stash keeps for itself. */
byte have[GROUPS];
byte lost[GROUPS];
bit in_spill[RECORDS];
byte spilled;
byte groups_over;

/* What is true, whoever knows it. */
bit sent[RECORDS];
bit let_in[GROUPS];
byte groups_in;
bit dead[PRODUCERS];
bit written_off[PRODUCERS];

#if PRODUCERS > 2
#define CLAIMS (owed + claimed[0] - marked[0] + claimed[1] - marked[1] + claimed[2] - marked[2])
#else
#define CLAIMS (owed + claimed[0] - marked[0] + claimed[1] - marked[1])
#endif
/* A claim is worth a try: the stash rings when it is (wake_openers), and so does who gives way. */
#define MAY_FIT (CLAIMS + NEED <= SPILL || CLAIMS == 0)
#define MAY_SEND(r) (known[GROUP(r)] || over[GROUP(r)] || MAY_FIT)
#define CHOOSE(p, r) SENDER(r) == (p) && !sent[r] && MAY_SEND(r) -> chosen = r
#define SENT(p, r) (SENDER(r) != (p) || sent[r])

inline let(g) {
    if
    :: !let_in[g] && !over[g] ->
        let_in[g] = 1;
        groups_in++;
        assert(DEATHS || groups_in * MEMBERS <= SPILL || groups_in == 1)
    :: else
    fi
}

/* Admission::claimed_bytes() and what is owed: lane by lane, what was read first. */
inline count() {
    do
    :: lane < PRODUCERS ->
        was = marked[lane];
        total = total + claimed[lane] - was;
        lane++
    :: else -> break
    od;
    total = total + owed;
    lane = 0;
    was = 0
}

proctype Producer(byte me) {
    byte chosen, total, lane, was, says;
    {
    do
    :: SENT(me, 0) && SENT(me, 1) && SENT(me, 2) && SENT(me, 3) && SENT(me, 4) && SENT(me, 5) ->
        break
    :: else ->
        atomic {
#ifdef FIXED_ORDER
            chosen = 0;
            do
            :: SENT(me, chosen) && SENDER(chosen) == me -> chosen++
            :: SENDER(chosen) != me -> chosen++
            :: else -> break
            od;
            MAY_SEND(chosen)
#else
            if
            :: CHOOSE(me, 0)
            :: CHOOSE(me, 1)
            :: CHOOSE(me, 2)
            :: CHOOSE(me, 3)
            :: CHOOSE(me, 4)
            :: CHOOSE(me, 5)
            fi
#endif
        }
        if
        :: known[GROUP(chosen)] || over[GROUP(chosen)]
        :: else ->
#ifdef COUNT_FIRST
            count();
            if
            :: total + NEED <= SPILL || total == 0 ->
                atomic { claimed[me] = claimed[me] + NEED; let(GROUP(chosen)) }
                says = says + NEED
            :: else -> chosen = RECORDS
            fi;
#else
            claimed[me] = claimed[me] + NEED;
            count();
            if
            :: atomic { total <= SPILL || total == NEED -> let(GROUP(chosen)) }
                says = says + NEED
            :: else ->
#ifndef NO_TAKE_BACK
                claimed[me] = claimed[me] - NEED;
#endif
                chosen = RECORDS
            fi;
#endif
            total = 0
        fi;
        if
        :: chosen == RECORDS
        :: chosen < RECORDS ->
            if
            :: head[me] - tail[me] < LANE
            :: else ->
                waits[me] = 1;
                head[me] - tail[me] < LANE;
                waits[me] = 0
            fi;
            atomic {
                record[CELL(me, head[me])] = chosen;
                frame[CELL(me, head[me])] = says;
                sent[chosen] = 1;
                head[me] = head[me] + 1
            }
        fi;
        chosen = 0
    od
    } unless { dead[me] }
}

/* The bytes of a lane are free in order. */
inline leave(p, k) {
    left[CELL(p, k)] = 1;
    do
    :: tail[p] < seen[p] && left[CELL(p, tail[p])] ->
        left[CELL(p, tail[p])] = 0;
        tail[p] = tail[p] + 1
    :: else -> break
    od
}

/* Its batch is acked: its records leave, and it is owed nothing more. */
inline finish(g) {
    over[g] = 1;
    groups_over++;
    groups_in = groups_in - let_in[g];
    let_in[g] = 0;
    p = 0;
    do
    :: p < PRODUCERS ->
        k = tail[p];
        do
        :: k < seen[p] ->
            if
            :: GROUP(record[CELL(p, k)]) == g && !left[CELL(p, k)] -> leave(p, k)
            :: else
            fi;
            k++
        :: else -> break
        od;
        p++
    :: else -> break
    od;
    k = 0;
    do
    :: k < RECORDS ->
        if
        :: GROUP(k) == g && in_spill[k] -> in_spill[k] = 0; spilled--
        :: else
        fi;
        k++
    :: else -> break
    od;
    p = 0;
    k = 0;
    owed = owed - MEMBERS
}

#define READ(i) atomic { seen[i] < head[i] -> p = i; r = record[CELL(i, seen[i])]; \
    k = frame[CELL(i, seen[i])]; seen[i] = seen[i] + 1 }
#define SHIP(i) atomic { known[i] && !over[i] && have[i] + lost[i] == MEMBERS -> finish(i) }
#define RELIEVE(i) atomic { \
    waits[i] && seen[i] == head[i] && head[i] - tail[i] == LANE && spilled < SPILL -> \
    in_spill[record[CELL(i, tail[i])]] = 1; spilled++; leave(i, tail[i]) }

proctype Stash() {
    byte p, k, r;
    do
    :: groups_over == GROUPS -> break
    /* The next record of a lane. Of a group that is over it leaves at once. */
    :: READ(0) -> goto came
    :: READ(1) -> goto came
#if PRODUCERS > 2
    :: READ(2) -> goto came
#endif
    :: false ->
came:
#ifdef READ_FIRST
        marked[p] = k;
#endif
        if
        :: over[GROUP(r)] -> atomic { leave(p, seen[p] - 1) }
        :: else ->
            if
            :: !known[GROUP(r)] -> owed = owed + MEMBERS; known[GROUP(r)] = 1
            :: else
            fi;
            have[GROUP(r)] = have[GROUP(r)] + 1
        fi;
#ifndef READ_FIRST
        marked[p] = k;
#endif
        atomic { p = 0; k = 0; r = 0 }
    :: SHIP(0)
    :: SHIP(1)
#if GROUPS > 2
    :: SHIP(2)
#endif
#ifndef NO_RELIEF
    :: RELIEVE(0)
    :: RELIEVE(1)
#if PRODUCERS > 2
    :: RELIEVE(2)
#endif
#endif
#if DEATHS
    /* The dead one's lane is read to its end. */
    :: atomic { dead[0] && !written_off[0] && seen[0] == head[0] ->
        written_off[0] = 1;
        waits[0] = 0;
#ifndef NO_WRITE_OFF
        marked[0] = claimed[0];
#endif
        r = 0;
        do
        :: r < RECORDS ->
            if
            :: SENDER(r) == 0 && !sent[r] -> lost[GROUP(r)] = lost[GROUP(r)] + 1
            :: else
            fi;
            r++
        :: else -> break
        od;
        r = 0 }
#endif
    od
}

init {
    atomic {
        run Producer(0);
        run Producer(1);
#if PRODUCERS > 2
        run Producer(2);
#endif
        run Stash()
    }
#if DEATHS
    if
    :: dead[0] = 1
    :: skip
    fi
#endif
}
