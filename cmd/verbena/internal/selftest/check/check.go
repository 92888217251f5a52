// SPDX-License-Identifier: Apache-2.0

// Package check runs the checks of verbena selftest: each proves one thing of
// a device, in bounded time and memory, and closes what it has opened.
package check

// Feature is something that Verbena offers to programs and that needs the
// device.
type Feature string

// The features, in the order in which the page has them.
const (
	Connections Feature = "connections (rdmacm)"
	Sockets     Feature = "net.Conn over RDMA (rsocket)"
	Transfers   Feature = "transfers (transfer)"
	Datagrams   Feature = "datagrams and multicast groups"
	Waiting     Feature = "waiting without a thread"
	Memory      Feature = "memory of the program's choice"
	Shared      Feature = "shared receive queues"
	Atomics     Feature = "atomic operations"
	Extended    Feature = "extended requests (ibv_wr_*)"
	Windows     Feature = "memory windows"
	Unreliable  Feature = "unreliable connections"
	XRC         Feature = "extended reliable connections (XRC)"
	Paging      Feature = "on-demand paging"
	Devices     Feature = "memory of other devices (DMA-buf)"
	Own         Feature = "memory of the device's own"
	Changes     Feature = "queues that change"
	Times       Feature = "times of completions"
	Protection  Feature = "protection of memory"
	Diagnosis   Feature = "errors that say what was wrong"
)

// Features are all features, in their order.
var Features = []Feature{
	Connections, Sockets, Transfers, Datagrams, Waiting, Memory, Protection, Diagnosis, Shared, Atomics, Extended, Windows, Unreliable, XRC,
	Paging, Devices, Own, Changes, Times,
}

// Check proves one thing.
type Check struct {
	Name     string    // such as requests.write, unique
	Proves   string    // what is so if the check is ok, as a clause
	Features []Feature // features that depend on it

	// Matters says what it means to programs if the device differs. Empty means
	// that the features are affected.
	Matters string
	// Do says what to do if the check differs or fails. It may be empty.
	Do string

	// Run makes the check. It uses T to say how the check ends: without that, the
	// check is ok.
	Run func(t *T)
}

// Outcome is how a check has ended.
type Outcome string

// The outcomes.
const (
	OK         Outcome = "ok"
	Differs    Outcome = "differs"     // from the specification, in a way that the result describes
	Failed     Outcome = "failed"      // what the check proves is not so
	NotOffered Outcome = "not offered" // the device says that it does not have what the check is about
	NotRun     Outcome = "not run"     // for a reason that is not the device's
)

// Result is what a check has found.
type Result struct {
	Check        string   `json:"check"`
	Outcome      Outcome  `json:"outcome"`
	Found        string   `json:"found,omitempty"` // what failed or differs, what the device lacks, why the check was not run
	Notes        []string `json:"notes,omitempty"` // facts, such as the largest number of segments that worked
	Cases        []Case   `json:"cases,omitempty"`
	Milliseconds int64    `json:"took_ms"`
}

// Case is a mistake, or another thing that may end in several ways, and how it
// ended.
type Case struct {
	Case          string `json:"case"`
	Specification string `json:"specification"` // how it ends by the specification; several ways are separated by " or "
	SoftRoCE      string `json:"soft_roce"`     // how it ends on Linux's Soft-RoCE
	UserSpace     string `json:"user_space"`    // how it ends on Verbena's device in user space
	Yours         string `json:"yours"`         // how it has ended
	Known         bool   `json:"known"`         // whether Yours is what the column of this kind of device has
}

// Differs reports whether the case has ended in another way than the
// specification has.
func (c Case) Differs() bool { return !oneOf(c.Yours, c.Specification) }
