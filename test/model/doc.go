// Package model checks the protocol of guard/promise with spin: promise.pml says
// in Promela what sites do, and spin tries every order of events there is.
//
// It owns the model, the forms in which it is checked, and its mutants. It never
// reads the Go code: that the model says the same is for its reader to judge, and
// its head tells what stands for what. Only go test runs it; spin and gcc must be
// there. What spin finds is told as a story of who has promised what.
//
// Every form allows two rounds of each site (or says otherwise), one crash,
// and messages that are late, lost, repeated and reordered without a bound. In each
// must hold, at the instant of every withdrawal:
//
//	floorHolds    at least K other sites announce
//	promisesLive  at least K other sites announce and are bound to stay, by a
//	              promise of this round that is neither released nor run out
//	neverBound    the site itself is bound to nobody
//	notOwing      nor was the process before its crash, by a promise not over yet
//
// and when nothing can happen any more:
//
//	allReturn     every site is on the air: who comes back asks nobody
//	allFree       no promise binds for ever
//
// go test checks (3,1) and (3,2) whole, both with all the ways of the speaker, and
// one round of (4,2) reduced; make model (-args -long) adds two rounds of that, and
// what else takes minutes and gigabytes. All of (4,2), not reduced, is too much: one
// round alone has more than 28 million states.
//
// Each mutant breaks one rule of the protocol, or one assumption that it stands on,
// and must be found out by the name of one of the six above:
//
//	NO_ROUND            an answer to an earlier round counts for this one
//	RELEASE_ANY_ROUND   a RELEASE of an earlier round frees from a later promise
//	OLD_QUESTION        a question older than one answered is answered
//	FROM_ANSWER         the lease is counted from the answer
//	COUNTS_ITSELF       the site that asks is one of those that stay
//	COUNTS_COPIES       a promise that comes twice counts twice
//	IGNORES_BINDING     the own binding is not checked
//	NO_DEADLINE         a withdrawal takes effect after the end of its permit
//	EARLY_RELEASE       the promises are given back before the withdrawal is confirmed
//	FAILED_RELEASES     or when it seems to have failed
//	LEAVING_PROMISES    a site promises while it leaves
//	FAILED_PROMISES     or while a withdrawal that seems to have failed may take effect
//	WITHDRAWN_PROMISES  a withdrawn site promises, since it reads back that it is not
//	BELIEVES_STALE      so does one that believes the first it reads back
//	PROMISES_OFF_AIR    a site promises that does not announce
//	FORGETS             a restarted site may leave at once
//	STARTED_PROMISES    or promises at once, while what it has begun may take effect
//	RETURN_ASKS         who comes back needs promises
//	CLOCKS_DIFFER       (assumption) rates differ by more than a lease outlasts its Span
//
// Only the simulator of guard/promise has nodes of one site, policies and changes of
// the configuration, so only it can catch:
//
//	two nodes of a site count twice
//	ignores terms
//	floor lowered in an open round
//	forgets the longer lease on restart
//	orders do not wait for sickness
package model
