/*
 * The protocol of guard/promise, for spin: N sites of one node each, one
 * prefix with floor K, at most R rounds of each site. doc.go of this folder
 * says in which forms it is run, and what becomes of the mutants.
 *
 * What stands for what, and why nothing is lost by it:
 *
 * - Network. Nothing that was sent is taken out: a message may be heard late,
 *   never, again and again, and in any order. So delay, loss, copies, reordering,
 *   partitions and one-way cuts are all in it, without a bound. INTENT(r) and
 *   RELEASE(r) go to all others: that they have been sent follows from the
 *   asker's round and phase. A question that is put later (Sick, wide, repeat) or
 *   to nobody is one that is late or lost.
 * - A PROMISE is heard when it is counted. To hear it sooner has no effect in the
 *   code but on the tally, and not to hear it is to be unable to leave.
 * - NACK, veto, wish, severity, rank, jitter, back-off, time-outs, MaxLeaves,
 *   policy. All they do is to refuse a promise, to end a round, or not to ask or
 *   leave. Here each of these may happen, or not, at any time (a refusal is a
 *   question that is lost). So every policy that asks for at least K sites is in
 *   it, and every order of events. Liveness is not: the simulator has that.
 * - Time. A question grows old (aged) when its Span has passed on the asker's
 *   clock. A promise lapses only after that: it was given later than the question,
 *   and for a lease, which is longer than the Span by more than the rates of
 *   clocks differ. All else about time is left open. A promise of a round that is
 *   over may lapse at any time; a question grows old only once it is answered,
 *   since before that it is as good as lost.
 * - "quiet" ends at the earliest when all has lapsed that the process before had
 *   promised. "blind" and "unsure" end with the request that they are for: to
 *   promise nobody for longer is to lose more questions.
 * - Withdrawal. Begin, the effect at the routers and End are three steps. The
 *   effect may come late, but not after the end of the permit: also after an End
 *   that tells of an error, and after a crash of the process that has asked for it.
 * - Crash. One, of site 0 (sites are alike, so it may have that name), at any time.
 *   The process forgets all but its rounds: by the boot id the next one is later
 *   than all before. How long it is dead is how long it hears nothing. What it owed
 *   is kept in owed, for the assertions. Its RELEASEs may go out or not.
 * - "held" is what the speaker was last seen to hold: what is true, or with SPEAKER
 *   what was true a little before, but never for so long as a lease. edged reads it
 *   in the loop that withdraws, so an older reading never comes after a newer one. Who
 *   asks need not be on the air: package promise does not look.
 *
 * Not in it: sites of several nodes, changes of the configuration, force, and
 * sessions that are lost: who has promised to stay is excused then.
 *
 * SPEAKER adds that withdrawals fail or seem to, are confirmed late, and that what
 * is read back is late. Without it, effect and End are one step.
 *
 * Two ways to have fewer states lose nothing:
 *
 * SORTED takes states for one that differ but in the numbers of the sites 1 to N-1.
 * Nothing tells these sites apart, and all processes are at the same place.
 *
 * REDUCED forgets dead questions. One is dead when its round is over or when it is
 * aged: no promise for it is counted, now or later. At its death those who are
 * bound by it (or owe for it, after the crash) are free at once; nobody hears it,
 * and it is forgotten who did. Let f(s) be state s of the whole model without what
 * belongs to dead questions. Then each step of the whole model from s to t is a step
 * of the reduced one from f(s) to f(t), or f(s) is f(t):
 * - To hear a dead question binds by it, which f forgets, and ends the hearer's own
 *   round, which may happen at any time. RELEASE, lapse and the end of a debt are of
 *   dead questions only, so f does not see them.
 * - For all else being bound, or owing, can only forbid: who may do it in s may in
 *   f(s). Nothing asks whether a question was heard but hearing it again.
 * So what breaks floorHolds in the whole model breaks it in the reduced one, and so
 * does what breaks promisesLive: to be bound by an aged question counts in the whole
 * model only. neverBound and notOwing say less when reduced: nothing of promises for
 * dead questions, which the whole forms of three sites say. KEEP writes every f(s)
 * down: model_test.go compares those of the whole model with those of the reduced one.
 */
#ifndef R
#define R 2
#endif
#if R > 2
#error "a site hears of two rounds only: see HEARS_TWO"
#endif

#define me (_pid - 1) /* process 0 is init */
#define LINK(a, b) ((a) * N + (b))
/* The others. Of three sites the third other one is the site itself: that never
   has asked itself, nor answered, so it counts for nothing. */
#define PEER(k) ((me + (k)) % N)
#define COUNT(f, i) (f(i, ((i)+1) % N) + f(i, ((i)+2) % N) + f(i, ((i)+3) % N))

/* asking: a round is open; leaving: between Begin and End; failed: that withdrawal
   may take effect yet; orphan: so may one of the process before. */
#define idle    0
#define asking  1
#define leaving 2
#define failed  3
#define orphan  4

/* As the asker. */
byte  round[N];      /* the last that it has opened; 0: none */
byte  phase[N];
bool  pending[N];    /* a request to the speaker that has had no effect so far */
bool  aged[N*N];     /* LINK(asker, asked): its Span has passed */
byte  sent[N*N];     /* LINK(asker, asked): the round of the PROMISE in the network; 0: none */

/* Its prefix. */
bool  on[N];         /* the truth at the routers */
bool  held[N];
bool  left[N];
bool  absent[N];

/* As the one asked. */
byte  bound[N*N];    /* LINK(asked, asker): the round that it stays for; 0: none */
byte  seen[N*N];     /* LINK(asked, asker): the latest round answered */

/* The crash, of site 0. */
bool  crashed;
bool  quiet;
byte  owed[N];       /* the rounds that the process before was bound by, and would be still */

#include "alike.pml"

/* ---- Rules. Beside each stands what a mutant makes of it. ---- */

#ifdef FROM_ANSWER
#define inSpan(i, j) 1 /* it counts from when the answer comes, and that may be now */
#else
#define inSpan(i, j) (!aged[LINK(i, j)])
#endif

#ifdef NO_ROUND
#define promised(i, j) (sent[LINK(i, j)] != 0 && inSpan(i, j))
#else
#define promised(i, j) (sent[LINK(i, j)] == round[i] && inSpan(i, j))
#endif

#if defined(COUNTS_ITSELF)
#define tally(i) (COUNT(promised, i) + 1)
#elif defined(COUNTS_COPIES)
#define tally(i) (COUNT(promised, i) * 2)
#else
#define tally(i) COUNT(promised, i)
#endif
#define enough(i) (tally(i) >= K)

#define isBound(i, j) (bound[LINK(i, j)] != 0)
#ifdef IGNORES_BINDING
#define boundTo(i) 0
#else
#define boundTo(i) COUNT(isBound, i)
#endif

#define isQuiet(i) (i == 0 && quiet)
#define bar(i) (left[i] || isQuiet(i) || boundTo(i))
#define permit(i) (phase[i] == asking && enough(i) && !bar(i))
#ifdef NO_DEADLINE
#define inTime(i) 1
#else
#define inTime(i) enough(i)
#endif

#ifdef RETURN_ASKS
#define maySeek(i) (phase[i] == idle && !isQuiet(i) && !boundTo(i))
#define mayReturn(i) (phase[i] == asking && enough(i))
#else
#define maySeek(i) (phase[i] == idle && !bar(i))
#define mayReturn(i) (phase[i] != leaving) /* edged waits for the end of that */
#endif

/* refusal of stay.go. */
#if defined(WITHDRAWN_PROMISES) || defined(BELIEVES_HELD)
#define hasLeft(i) 0
#else
#define hasLeft(i) left[i]
#endif
#if defined(WITHDRAWN_PROMISES) || defined(PROMISES_OFF_AIR)
#define isHeld(i) 1
#else
#define isHeld(i) held[i]
#endif
#ifdef LEAVING_PROMISES
#define isLeaving(i) 0
#else
#define isLeaving(i) (phase[i] == leaving)
#endif
#ifdef FAILED_PROMISES
#define isUnsure(i) 0
#else
#define isUnsure(i) (phase[i] == failed)
#endif
#ifdef STARTED_PROMISES
#define isBlind(i) 0
#else
#define isBlind(i) (phase[i] == orphan)
#endif
#define refusal(i) (isLeaving(i) || hasLeft(i) || !isHeld(i) || isBlind(i) || isUnsure(i))

/* Site i may hear question r of site o: it was put, and none as late was answered. */
#ifdef REDUCED
#define put(o, r) (r == round[o] && phase[o] != idle && !aged[LINK(o, me)])
#else
#define put(o, r) (r <= round[o])
#endif
#ifdef OLD_QUESTION
#define isNew(i, o, r) (r != bound[LINK(i, o)])
#else
#define isNew(i, o, r) (r > seen[LINK(i, o)])
#endif

/* RELEASE(r) of site o is in the network. */
#if defined(EARLY_RELEASE)
#define isOver(o) (phase[o] == idle || phase[o] == leaving)
#elif defined(FAILED_RELEASES)
#define isOver(o) (phase[o] == idle || phase[o] == failed)
#else
#define isOver(o) (phase[o] == idle)
#endif
#define released(o, r) (r < round[o] || r == round[o] && isOver(o))
#ifdef RELEASE_ANY_ROUND
#define frees(o, r) (released(o, r) || round[o] > 1)
#else
#define frees(o, r) released(o, r)
#endif

/* The lease has run out of what site i has promised for round r of site o. */
#ifdef CLOCKS_DIFFER
#define ranOut(i, o, r) 1
#else
#define ranOut(i, o, r) (r == round[o] && aged[LINK(o, i)])
#endif

/* ---- What must hold. The names are for what spin prints, and no part of a state. ---- */

hidden byte floorHolds, promisesLive, neverBound, notOwing;
hidden byte allReturn, allFree;
hidden byte nobodyLeaves, nobodyLeavesAgain;
#ifdef WITNESS_AGAIN
bool before[N]; /* has left by an earlier round */
#endif

#define announces(i, j) ((i) != (j) && on[j])
#define stays(i, j) (on[j] && (bound[LINK(j, i)] == round[i] || (j) == 0 && owed[i] == round[i]))
#define owes(i, j) ((i) == 0 && owed[j] != 0)

/* At the instant of a withdrawal. */
inline check() {
	floorHolds = COUNT(announces, me) >= K;
	assert(floorHolds);
	promisesLive = COUNT(stays, me) >= K; /* K others announce, are bound by this round, and not free yet */
	assert(promisesLive);
	neverBound = COUNT(isBound, me) == 0;
	assert(neverBound);
	notOwing = COUNT(owes, me) == 0;      /* nor by the process before */
	assert(notOwing)
	/* No rules: that they are broken shows that the model gets as far as this. */
#if defined(WITNESS)
	; nobodyLeaves = !(me == 0 && crashed && round[0] == R && COUNT(announces, 0) == K);
	assert(nobodyLeaves)
#elif defined(WITNESS_AGAIN)
	; nobodyLeavesAgain = !(before[me] && round[me] == R && COUNT(announces, me) == K);
	assert(nobodyLeavesAgain);
	before[me] = true
#endif
}

/* ---- Steps. ---- */

/* The question of this site to site j is dead from here. */
#ifdef REDUCED
#define dies(j) \
	bound[LINK(j, me)] = 0; seen[LINK(j, me)] = 0; \
	if :: j == 0 -> owed[me] = 0 :: else fi
#else
#define dies(j) skip
#endif

/* An answer that could only be dropped, as stale_round, is not kept. */
#ifdef NO_ROUND
#define isFresh(o, r) (r > sent[LINK(o, me)])
#define dropStale(j) skip
#else
#define isFresh(o, r) (r == round[o] && phase[o] != idle)
#define dropStale(j) sent[LINK(me, j)] = 0
#endif

/* The round is over: from here RELEASE is in the network. */
inline close() {
	printf("site %d: round %d is over\n", me, round[me]);
	phase[me] = idle; pending[me] = false;
	aged[LINK(me, PEER(1))] = false; aged[LINK(me, PEER(2))] = false; aged[LINK(me, PEER(3))] = false;
	dropStale(PEER(1)); dropStale(PEER(2)); dropStale(PEER(3));
	dies(PEER(1)); dies(PEER(2)); dies(PEER(3))
}

/* onIntent: bound first, answered after. */
inline promise(o, r) {
	printf("site %d promises site %d, round %d\n", me, o, r);
	seen[LINK(me, o)] = r; bound[LINK(me, o)] = r;
	if :: isFresh(o, r) -> sent[LINK(o, me)] = r :: else fi;
	if :: phase[me] == asking -> close(); happens(promises and gives up) :: else fi
}

#ifdef BELIEVES_STALE
#define believed(i) 1
#else
#define believed(i) absent[i]
#endif

inline gone() {
	if
	:: left[me] && !held[me] -> absent[me] = true
	:: left[me] && held[me] && believed(me) -> left[me] = false; absent[me] = false; happens(is back)
	:: else
	fi
}

inline readBack() { held[me] = on[me]; gone() }

#ifdef SPEAKER
#define readSoon() skip
#else
#define readSoon() readBack()
#endif

inline withdraw() {
	printf("site %d LEAVES\n", me);
	if
	:: on[me] -> check(); happens(leaves the air)
	:: else -> happens(withdraws what is not there)
	fi;
	on[me] = false; pending[me] = false
#ifndef SPEAKER
	; if :: phase[me] == leaving -> left[me] = true; close() :: else fi;
	readBack()
#endif
}

#define forget(o) owed[o] = bound[LINK(me, o)]; bound[LINK(me, o)] = 0; seen[LINK(me, o)] = 0

inline crash() {
	printf("site %d starts anew\n", me);
	crashed = true;
#ifndef FORGETS
	quiet = true;
#endif
	if :: pending[me] -> phase[me] = orphan; happens(crashes while it withdraws) :: else -> close() fi;
	left[me] = false; absent[me] = false; held[me] = on[me];
	forget(PEER(1)); forget(PEER(2)); forget(PEER(3))
}

/* What becomes of promises to site o. */
#if defined(REDUCED) && !defined(MUTANT) /* there is nothing to free */
#define FREES(o)
#else
#define FREES(o) \
	:: d_step { isBound(me, o) && frees(o, bound[LINK(me, o)]) -> \
		printf("site %d hears RELEASE(%d) of site %d\n", me, bound[LINK(me, o)], o); bound[LINK(me, o)] = 0; done(hears a release) } \
	:: d_step { isBound(me, o) && ranOut(me, o, bound[LINK(me, o)]) -> \
		printf("site %d: the lease for round %d of site %d runs out\n", me, bound[LINK(me, o)], o); bound[LINK(me, o)] = 0; done(lets a lease run out) } \
	:: d_step { owes(me, o) && (frees(o, owed[o]) || ranOut(me, o, owed[o])) -> \
		printf("site %d: what it owed site %d is over\n", me, o); owed[o] = 0; done(owes no longer) }
#endif

#if R > 1
#define HEARS_TWO(o) \
	:: d_step { put(o, 2) && isNew(me, o, 2) && !refusal(me) -> promise(o, 2); done(promises round two) }
#else
#define HEARS_TWO(o)
#endif

/* All there is between a site and another one. The text is for the replay of what
   spin has found. */
#define WITH(o) \
	:: d_step { put(o, 1) && isNew(me, o, 1) && !refusal(me) -> promise(o, 1); done(promises round one) } \
	HEARS_TWO(o) \
	:: d_step { phase[me] != idle && sent[LINK(me, o)] == round[me] && !aged[LINK(me, o)] -> \
		printf("site %d: its question to site %d grows old\n", me, o); aged[LINK(me, o)] = true; dies(o); done(has a question grow old) } \
	FREES(o)

proctype site() {
end:
	do
	WITH(PEER(1))
	WITH(PEER(2))
#if N > 3
	WITH(PEER(3))
#endif
	/* seek */
	:: d_step { maySeek(me) && round[me] < R ->
		round[me]++; phase[me] = asking; printf("site %d asks, round %d\n", me, round[me]); done(asks) }
	/* close, whatever the cause */
	:: d_step { phase[me] == asking -> close(); done(gives up) }
	/* Begin */
	:: d_step { permit(me) -> phase[me] = leaving; pending[me] = true; printf("site %d has leave\n", me); done(has leave) }
	/* the effect */
	:: d_step { pending[me] && inTime(me) -> withdraw(); done(withdraws) }
#ifdef SPEAKER
	/* End, after a success and after an error; the end of the permit */
	:: d_step { phase[me] == leaving && !on[me] -> left[me] = true; close(); gone(); done(confirms) }
	:: d_step { phase[me] == leaving -> phase[me] = failed; printf("site %d: its withdrawal seems to fail\n", me); done(seems to fail) }
	:: d_step { (phase[me] == failed || phase[me] == orphan) && !enough(me) -> close(); readBack(); done(is past its permit) }
	:: d_step { held[me] != on[me] -> readBack(); printf("site %d reads back %d\n", me, held[me]); done(reads back) }
	/* A lease after the withdrawal what was read back is newer than it. */
	:: d_step { left[me] && held[me] && on[me] -> left[me] = false; absent[me] = false; done(believes after a lease) }
#else
	:: d_step { (phase[me] == leaving || phase[me] == orphan) && !enough(me) -> close(); done(is past its permit) }
#endif
	/* It comes back, which asks nobody. */
	:: d_step { !on[me] && mayReturn(me) -> on[me] = true; readSoon(); printf("site %d announces\n", me); done(returns) }
	:: d_step { me == 0 && !crashed -> crash(); done(crashes) }
	:: d_step { isQuiet(me) && !COUNT(owes, me) -> quiet = false; printf("site %d may ask again\n", me); done(is quiet no longer) }
	od
}

/* Some may be off the air at the beginning. */
inline start(i) {
	phase[i] = idle;
	if :: on[i] = true :: skip fi;
	held[i] = on[i];
	run site()
}

init {
	atomic {
		start(0); start(1); start(2);
#if N > 3
		start(3);
#endif
		done(starts)
	};
	/* When nothing can happen any more, all are on the air and free: nobody is ever
	   kept from coming back, and no promise binds for ever. */
	timeout;
	allReturn = COUNT(announces, 0) + on[0] == N;
	assert(allReturn);
	allFree = COUNT(isBound, 0) + COUNT(isBound, 1) + COUNT(isBound, 2) + COUNT(isBound, N-1) == 0 && !quiet;
	assert(allFree)
}
