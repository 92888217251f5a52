// Package ibverbs gives Go programs RDMA verbs: devices, registered memory,
// completion queues and queue pairs, as libibverbs has them.
//
// Most programs connect with package rdmacm and meet this package through the
// objects of a connection. Package flow, in the folder below, steers packets of
// other protocols to queue pairs. The C manual pages named in the comments, such
// as ibv_post_send(3), describe the rules of the hardware.
//
// # Lifetimes
//
// Every object has a Close, which may be called more than once and from any
// goroutine. It waits for calls that are inside C with the object, and later
// calls return an error that is os.ErrClosed. An object that others depend on
// is not closed: Close returns a [BusyError] that lists them, and everything
// goes on. Nothing is closed by the garbage collector, because the order
// matters; [OpenObjects] finds what was forgotten.
//
// While a Close is under way, calls may already return os.ErrClosed, even if
// the object turns out to be needed still. A nil object, or one that was not
// made by this package's functions, returns os.ErrInvalid.
//
// # Numbers
//
// Numbers have the host's byte order, also those that are in network order in C
// or in packets: GUIDs, P_Keys, immediate data. A [GID] is bytes as a packet has
// them. Sizes are bytes, and times are time.Durations, where a comment does not
// give another unit. Ports count from 1, and indices of tables from 0.
//
// # Goroutines
//
// Methods may be called concurrently, except those of batches, and where a type
// says otherwise. A call holds a thread until the kernel has answered, which
// takes long only where its comment says so.
//
// # Waiting
//
// A queue made with a [CompChannel] is waited for with [CQ.Wait]. That parks
// the goroutine on Go's netpoller, holds no thread, and ends with its context.
//
// # Events
//
// [Device.NextEvent] waits for what happens to the device and its objects, in
// the same way, and names our object that it happened to. A program whose
// device may be removed should read events: not every driver notices a removal
// while posting.
//
// # Data path
//
// Requests are collected in a [SendBatch] or [RecvBatch] and posted in one
// call of C; completions are polled into a slice of [WC]. None of this
// allocates.
//
// There are four ways to a completion. [CQ.Poll] looks once. [CQ.Spin] looks
// again and again inside one call of C, for a bounded time: it answers soonest
// and uses a processor. [CQ.Sleep] sleeps for an event inside one call of C, for a
// bounded time: it uses a thread. [CQ.Wait] leaves the waiting to the runtime, for
// as long as its context lasts: thousands of goroutines can do so, and each pays
// for being woken. [QP.Exchange] and [QP.ExchangeAndSleep] post in the call that
// spins or sleeps.
//
// A goroutine that posts and polls without ever blocking should call
// [runtime.Gosched] every few milliseconds: the runtime's monitor, which looks
// every 10 ms, interrupts it otherwise. What spins or sleeps here does so by
// itself.
//
// # Connecting by hand
//
// Without package rdmacm, two sides exchange what [QP.Addr] returns, as
// text or JSON, and call [QP.ConnectTo].
//
// # Errors
//
// A C call that failed returns an [*Error] with the errno. A call that could not
// succeed is refused before C is called, with an [*ArgumentError] that says what
// is wrong; errors.Is finds syscall.EINVAL in it, unless the function's comment
// names another error. A work request that failed gives a [*WCError] with its
// status. Without the C library, or with one that is too old for the function,
// the error is a [*LibraryError] or a [*SymbolError]; both are
// errors.ErrUnsupported, as is everything in a program built without cgo or not
// for 64-bit Linux.
package ibverbs
