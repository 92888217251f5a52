// SPDX-License-Identifier: Apache-2.0

// Package detector tells Go's race detector what the device reads and writes in
// the memory of the program. In programs that are not built with -race, it does
// nothing.
//
// The race detector knows goroutines, and what happens before what. A device
// works at the same time as the program. So each call that posts requests
// starts a goroutine, which accesses the memory of the requests for the race
// detector alone, and then ends. Posting the request happens before the access,
// and the access happens before the poll that returns the request's completion.
// An access of the program between the two is then reported as a data race. The
// report has the stack of the program's access and, as the place where the
// goroutine was created, the stack of the posting.
//
// A request that accesses the memory of a peer in the same process has a second
// goroutine, which does that when the peer's device executes the request. The
// access happens before the completion of the request, and before the
// completion of the next message that the peer receives from the same queue
// pair.
//
// These accesses must happen before nothing else of the program, or the race
// detector would not find its mistakes. So when a goroutine of the program or
// of the device waits for such an access for another reason, it disables race
// events, and the race detector does not see the wait.
//
// Accesses of two requests to the same memory are not reported, since programs
// may for example receive into memory that they do not use.
package detector
