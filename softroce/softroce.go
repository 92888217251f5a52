// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"fmt"
	"net/netip"
	"time"
)

// name is the name of the device in VERBENA_DEVICE.
const name = "soft"

// Config configures the device. The zero value gives a fault-free device that
// reaches other processes on this machine.
type Config struct {
	// Network selects the peers that the device can reach. It is the part of
	// VERBENA_DEVICE after "soft:". Empty means processes on this machine.
	// "udp" means processes on all machines, and network cards with RoCE
	// version 2, over all addresses of this machine except loopback ones.
	// "udp=192.0.2.1,2001:db8::1" means the same over these addresses only.
	Network string

	// Devices are the devices of the process, as a machine has several
	// cards. Each address belongs to one device. One device can be without
	// Addresses: it has all addresses of the network that the others do not
	// have. On the network of this machine, the addresses of a device need
	// not be the machine's.
	//
	// If Devices is empty, the devices are those in the environment variable
	// VERBENA_DEVICES, such as "soft0=127.0.0.1;soft1=127.0.0.2,10.0.0.5",
	// or else one device, soft0, which has all addresses.
	Devices []DeviceConfig

	// Hostile, if not empty, is the seed of a hostile mode, in which the
	// device is as unfriendly as the InfiniBand specification allows.
	// Packets of reliable connections and messages of the connection
	// manager come late, twice or in another order. Acknowledgements are
	// slow. Receivers that are ready report that they are not. Queue pairs
	// send only a few packets at a time. Nothing is lost: a correct program
	// sees the same results as without the mode, only later and in another
	// order.
	//
	// If Hostile is empty, the seed is the value of the environment
	// variable VERBENA_HOSTILE.
	Hostile string

	// Limits, if not empty, limits what the device has, so that a program
	// meets what network cards lack. It is the name of a set, or limits such
	// as "sge=1,inline=0", or both: "siw,wr=16". The device reports its
	// limits as cards do, and refuses what exceeds them with the errors of
	// their drivers. docs/softroce.md lists the limits and the sets.
	//
	// If Limits is empty, the limits are the value of the environment
	// variable VERBENA_LIMITS.
	Limits string

	// Check, if it is "1" or "abort", makes the device check the memory of
	// work requests: it reports on stderr when the program has written to
	// memory that belonged to the device. Memory that the program reads
	// before a message has arrived has the text "too soon" instead of old
	// bytes, unless peers have access to it or several requests use it.
	// "abort" ends the process with the first report, "0" turns the check
	// off. docs/softroce.md says what is found, and what is not. In programs
	// that are built with -race, which have Go's race detector, Check does
	// nothing.
	//
	// If Check is empty, it is the value of the environment variable
	// VERBENA_CHECK.
	Check string
}

// DeviceConfig configures one of several devices.
type DeviceConfig struct {
	// Name is the name of the device, such as soft0: 1 to 63 letters,
	// digits, "_", "-" and ".", of which the first is a letter or digit.
	Name string
	// Addresses are the device's addresses, in the order of its GID table.
	// On the UDP network, they must be addresses of this machine.
	Addresses []netip.Addr
}

// Packet is a packet that the device sends from one queue pair to another.
type Packet struct {
	Kind                Kind
	Source, Destination netip.Addr
	// DestQP is the number of the destination queue pair: 1 for messages of
	// the connection manager, and 0xFFFFFF for datagrams to a multicast
	// group.
	DestQP uint32
	// PSN is the packet sequence number, of 24 bits. A retransmission has
	// the same PSN.
	PSN uint32
	// First and Last report whether the packet is the first and the last of
	// its message. Both are true for the only packet of a message.
	First, Last bool
	// Len is the number of bytes of the program's data in the packet.
	Len int
}

// Kind says what a packet is for.
type Kind uint8

// Kinds of packets. KindREQ and the following ones are messages of the
// connection manager.
const (
	KindSend           Kind = iota + 1 // carries a part of a message, or a datagram
	KindWrite                          // carries a part of an RDMA write
	KindReadRequest                    // requests an RDMA read
	KindReadResponse                   // carries a part of the data that an RDMA read requested, or answers a KindFlush or KindAtomicWrite
	KindFlush                          // requests an RDMA flush
	KindAtomicWrite                    // requests an RDMA atomic write
	KindAtomicRequest                  // requests an atomic operation
	KindAtomicResponse                 // carries the value of the word before the atomic operation
	KindAck                            // acknowledges all packets up to PSN
	KindNak                            // reports that the packet with the PSN is missing, or refuses that packet
	KindNotReady                       // reports that no receive was posted for the packet with the PSN (RNR NAK)

	KindREQ     // requests a connection
	KindREP     // accepts a connection
	KindRTU     // confirms a KindREP: the connection is ready to use
	KindREJ     // rejects a connection
	KindMRA     // announces that the answer will take longer
	KindDREQ    // ends a connection
	KindDREP    // confirms a KindDREQ
	KindSIDRREQ // requests the queue pair number of a datagram service
	KindSIDRREP // answers a KindSIDRREQ
)

var kinds = [...]string{
	KindSend:           "SEND",
	KindWrite:          "WRITE",
	KindReadRequest:    "READ request",
	KindReadResponse:   "READ response",
	KindFlush:          "FLUSH",
	KindAtomicWrite:    "ATOMIC WRITE",
	KindAtomicRequest:  "atomic request",
	KindAtomicResponse: "atomic response",
	KindAck:            "ACK",
	KindNak:            "NAK",
	KindNotReady:       "RNR NAK",
	KindREQ:            "REQ",
	KindREP:            "REP",
	KindRTU:            "RTU",
	KindREJ:            "REJ",
	KindMRA:            "MRA",
	KindDREQ:           "DREQ",
	KindDREP:           "DREP",
	KindSIDRREQ:        "SIDR_REQ",
	KindSIDRREP:        "SIDR_REP",
}

// String returns the name of the kind in the InfiniBand specification.
func (k Kind) String() string {
	if int(k) < len(kinds) && kinds[k] != "" {
		return kinds[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Fault says what happens to a packet. With the zero Fault, the packet arrives
// unharmed.
type Fault struct {
	// Drop loses the packet. If it is set, the other fields are ignored.
	Drop bool
	// Corrupt flips one random bit of the packet, and of each copy. The
	// receiver finds that the checksum is wrong and ignores the packet. The
	// checksum does not cover bits that routers may change; if such a bit
	// is flipped, the packet arrives unharmed.
	Corrupt bool
	// Duplicate is the number of additional copies that arrive.
	Duplicate int
	// Delay is the time by which the packet arrives later. Packets that are
	// sent in the meantime may overtake it.
	Delay time.Duration
}
