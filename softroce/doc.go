// SPDX-License-Identifier: Apache-2.0

// Package softroce is an RDMA device in user space: it implements libibverbs and
// librdmacm, so that programs of packages ibverbs and rdmacm run without a card,
// without a driver and without those libraries.
//
// A program that imports it takes the device instead of the installed libraries
// when the environment says so:
//
//	import _ "github.com/verbena-go/verbena/softroce"
//
//	VERBENA_DEVICE=soft ./program
//
// or when it calls [Use] before anything else of RDMA, in main or TestMain. The
// choice is for the whole program, for all of its life.
//
// The device is called soft0 and has the addresses of the machine, 127.0.0.1
// included. It reaches the program itself and other programs of the machine that
// use it, if they have the same user and the same text, or none, in the
// environment variable VERBENA_NETWORK: programs with another text are on another
// network, with the same addresses and with ports of their own.
//
// With VERBENA_DEVICE=soft:udp, or soft:udp=192.0.2.1,2001:db8::1 and so on, the device is on the network of all machines instead, at UDP port
// 4791 of the machine's addresses or those given: it speaks RoCE version 2 with Linux's rdma_rxe, and with other processes and machines
// that have it. Nothing on that network is authenticated.
//
// The command verbena softroce of cmd/verbena runs programs that are not Go on the device.
//
// # Testing programs
//
// [SetFaults] loses, repeats, delays and corrupts packets. [SetPort], [Remove], [Insert] and
// [SetAddresses] do to the device what happens to cards. [Config] has a hostile mode, in which nothing is
// lost but everything comes late, twice and in other orders. [Capture] writes what was
// sent to a file for Wireshark, and so does any program whose environment names one in VERBENA_CAPTURE.
//
// All of these concern the one device of the process, so tests that use them must
// not run in parallel with others. They may be called concurrently and do not block.
package softroce
