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
// must hold, at the instant at which a withdrawal takes effect:
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
// promisesLive is the promise of the product. floorHolds follows from it, and is weaker:
// not all that breaks the one breaks the other.
//
// Forms differ in three ways: with all the ways of the speaker or without; whole or
// reduced, which leaves out of each state the questions that can have no promise that
// counts; and in the sites. That reducing loses nothing is argued at the head of the
// model and tried where both can be: the states of the whole form with three
// sites, without dead questions, are exactly those of the reduced one. All of (4,2),
// not reduced, is too much: one round, which is a form of its own, has 15 million
// states, and with three sites a second round makes it forty times as many.
//
// go test checks (3,1) and (3,2) whole, (4,2) reduced, and three sites with the speaker
// reduced; make model (-args -long) adds what takes minutes and gigabytes. A
// step of the model that is never taken in a form, or a site that cannot leave, come
// back and leave again in it, is an error as well.
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
//	WITHDRAWN_PROMISES  a withdrawn site promises
//	BELIEVES_HELD       so does one that has read back that it is not
//	BELIEVES_STALE      or that believes the first it reads back
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
