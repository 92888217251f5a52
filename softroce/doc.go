// SPDX-License-Identifier: Apache-2.0

// Package softroce is an RDMA device in user space. It implements libibverbs
// and librdmacm, so that programs of packages ibverbs and rdmacm run without a
// card, without a driver and without those libraries.
//
// A program that imports the package uses the device instead of the installed
// libraries if the environment says so:
//
//	import _ "github.com/verbena-go/verbena/softroce"
//
//	VERBENA_DEVICE=soft ./program
//
// or if it calls [Use] before any other RDMA call, in main or TestMain. The
// choice applies to the whole program until it exits.
//
// The device is called soft0 and has the addresses of the machine, including
// 127.0.0.1. A process can have several devices, each with addresses of its
// own: see [Config] and the environment variable VERBENA_DEVICES. A device
// reaches the program itself, and other programs that use such
// devices on the same machine, if they run as the same user and have the same
// value of the environment variable VERBENA_NETWORK, or all have none. Programs
// with another value are on another network, which has the same addresses but
// its own ports.
//
// With VERBENA_DEVICE=soft:udp, the device is on the network of all machines
// instead, on UDP port 4791 of the machine's addresses. With
// VERBENA_DEVICE=soft:udp=192.0.2.1,2001:db8::1, it has only the given
// addresses. It then speaks RoCE version 2 with Linux's rdma_rxe, with network
// cards, and with this device in other processes and on other machines. Nothing
// on that network is authenticated.
//
// The command "verbena softroce" of cmd/verbena runs programs that are not
// written in Go on the device.
//
// # Testing programs
//
// [SetFaults] loses, duplicates, delays and corrupts packets. [SetPort],
// [Remove], [Insert] and [SetAddresses] change the device as an administrator
// changes a card; [FindCard] returns one of several devices. [Config] has a
// hostile mode, which loses nothing but delays, duplicates and reorders
// packets. It also has limits, with which the device lacks what cards lack, and
// a check of the memory of requests in progress, which reports when the program
// writes to it. [Capture] writes sent packets to a file for Wireshark, as does
// the environment variable VERBENA_CAPTURE, which names a file.
//
// All of these affect the devices of the process, so tests that use them must
// not run in parallel with others. They may be called concurrently and do not
// block.
package softroce
