// SPDX-License-Identifier: Apache-2.0

// Package softroce is an RDMA device in user space. It implements libibverbs
// and librdmacm, so that programs of packages ibverbs and rdmacm run without a
// card, without a driver and without those libraries.
//
// A program that imports it takes the device instead of the installed libraries
// when the environment says so:
//
//	import _ "github.com/verbena-go/verbena/softroce"
//
//	VERBENA_DEVICE=soft ./program
//
// or when it calls [Use] before any other RDMA call, in main or TestMain. The
// choice is for the whole program and lasts until it exits.
//
// The device is called soft0 and has the addresses of the machine, including
// 127.0.0.1. It reaches the program itself and other programs of the same user
// on the machine that use it, if all have the same value of the environment
// variable VERBENA_NETWORK, or all have none. Programs with another value are
// on another network, which has the same addresses but its own ports.
//
// With VERBENA_DEVICE=soft:udp, the device is on the network of all machines
// instead, at UDP port 4791 of the machine's addresses. With
// VERBENA_DEVICE=soft:udp=192.0.2.1,2001:db8::1, it uses only the given
// addresses. It then speaks RoCE version 2 with Linux's rdma_rxe, with network
// cards, and with the same device in other processes and on other machines.
// Nothing on that network is authenticated.
//
// The command verbena softroce of cmd/verbena runs programs that are not
// written in Go on the device.
//
// # Testing programs
//
// [SetFaults] loses, repeats, delays and corrupts packets. [SetPort], [Remove],
// [Insert] and [SetAddresses] do to the device what happens to cards. [Config]
// has a hostile mode, which loses nothing but delays, duplicates and reorders
// packets. [Capture] writes sent packets to a file for Wireshark. So does a
// program whose environment names a file in VERBENA_CAPTURE.
//
// All of these affect the one device of the process, so tests that use them
// must not run in parallel with others. They may be called concurrently and do
// not block.
package softroce
