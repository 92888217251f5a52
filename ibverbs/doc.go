// SPDX-License-Identifier: Apache-2.0

// Package ibverbs provides RDMA verbs: devices, registered memory, completion
// queues and queue pairs. It binds the C library libibverbs.
//
// Most programs connect with package
// [github.com/verbena-go/verbena/rdmacm] and use the objects of this package
// that belong to a connection. The comments name C manual pages, such as
// ibv_post_send(3), which describe the rules of the hardware.
//
// The packages in the directories below have what few programs need:
//
//   - [github.com/verbena-go/verbena/ibverbs/caps] describes what a
//     device can do.
//   - [github.com/verbena-go/verbena/ibverbs/counter] counts the
//     completions of queue pairs on the device.
//   - [github.com/verbena-go/verbena/ibverbs/devmem] allocates memory of
//     the device, and tells it how to reach memory.
//   - [github.com/verbena-go/verbena/ibverbs/efa] makes queue pairs of AWS's
//     Elastic Fabric Adapter.
//   - [github.com/verbena-go/verbena/ibverbs/flow] steers packets of other
//     protocols to queue pairs and work queues.
//   - [github.com/verbena-go/verbena/ibverbs/link] describes the link of a
//     port.
//   - [github.com/verbena-go/verbena/ibverbs/mlx5] makes queue pairs of
//     NVIDIA's dynamically connected transport.
//   - [github.com/verbena-go/verbena/ibverbs/share] shares devices and
//     their objects between processes.
//   - [github.com/verbena-go/verbena/ibverbs/tag] matches messages to
//     receives by tag.
//
// # Lifetimes
//
// Every object has a Close method, which may be called more than once and from
// any goroutine. Close waits for calls that are inside C with the object. Later
// calls fail with an error matching os.ErrClosed. While other objects depend on
// an object, its Close does nothing and returns a [*BusyError] that lists them.
// The garbage collector closes nothing, because the order matters;
// [OpenObjects] lists what a program forgot to close.
//
// During a Close, calls may fail with an error matching os.ErrClosed even if
// that Close then returns a [*BusyError]. Methods of a nil object, or of one
// that this package's functions did not create, fail with an error matching
// os.ErrInvalid.
//
// # Numbers
//
// Numbers are in host byte order, even those that C or packets have in network
// byte order: GUIDs, P_Keys, immediate data. A [GID] holds bytes as in a
// packet. Unless a comment says otherwise, sizes are in bytes and times are
// time.Durations. Ports count from 1, and table indices from 0.
//
// # Goroutines
//
// Methods may be called concurrently, except those of batches and where a type
// says otherwise. A call occupies an OS thread until the kernel answers, which
// takes long only where its comment says so.
//
// # Waiting
//
// [CQ.Wait] waits for completions of a queue created with a [CompChannel],
// until its context ends. It parks the goroutine on Go's netpoller, and
// occupies no OS thread while it waits.
//
// # Events
//
// [Device.NextEvent] waits in the same way for events of the device and its
// objects. An event holds the object that it happened to. A program whose
// device may be removed should read events: not every driver notices a removal
// while posting.
//
// # Data path
//
// Collect requests in a [SendBatch] or [RecvBatch] and post them in one C call.
// Poll completions into a slice of [WC]. None of this allocates.
//
// There are four ways to get completions:
//
//   - [CQ.Poll] looks once.
//   - [CQ.Spin] polls inside one C call for a bounded time. It returns soonest,
//     but burns a CPU.
//   - [CQ.Sleep] blocks inside one C call for a bounded time. It occupies an OS
//     thread.
//   - [CQ.Wait] waits in the Go runtime until its context ends. Thousands of
//     goroutines can wait at once, but each wakeup costs time.
//
// [QP.Exchange] and [QP.ExchangeAndSleep] also post, in the same C call that
// spins or sleeps.
//
// A goroutine that posts and polls without ever blocking should call
// [runtime.Gosched] every few milliseconds: otherwise the runtime's monitor,
// which checks every 10 ms, interrupts it. The methods that spin or sleep do
// this on their own.
//
// # Connecting by hand
//
// Without package rdmacm, two programs exchange the results of [QP.Addr], as
// text or JSON, and call [QP.ConnectTo].
//
// # Errors
//
// A C call that fails returns an [*Error] with the errno. A call that cannot
// succeed fails before it reaches C, with an [*ArgumentError] that says what is
// wrong; it matches syscall.EINVAL, unless the function's comment names another
// error. A work request that fails gives a [*WCError] with its status. If the C
// library is missing or too old for the function, the error is a
// [*LibraryError] or a [*SymbolError]. Both match errors.ErrUnsupported, as
// does every error of a program built without cgo or not for 64-bit Linux.
// Where a comment says that an error matches another, such as os.ErrClosed,
// test it with errors.Is.
package ibverbs
