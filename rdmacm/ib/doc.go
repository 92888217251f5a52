// SPDX-License-Identifier: Apache-2.0

// Package ib provides functions for IDs with native InfiniBand addresses (AF_IB)
// instead of IP addresses. An [rdmacm.IBAddr] is a GID and a service ID. Few
// programs need these: RoCE and InfiniBand ports have IP addresses, too, which
// package rdmacm uses.
//
// A program that needs them creates an ID in [rdmacm.PortSpaceIB] and uses these
// functions instead of the methods of [rdmacm.ID] with similar names. The same
// events report the results:
//
//	id, err := channel.NewID(rdmacm.PortSpaceIB)
//	err = ib.Resolve(id, nil, rdmacm.IBAddr{GID: gid, ServiceID: service}, time.Second)
//	// EventAddrResolved follows, then as with IP addresses.
//
// [rdmacm.GetAddrInfo] returns such addresses for [rdmacm.FamilyIB]; package
// [github.com/verbena-go/verbena/rdmacm/endpoint] takes them in an
// [rdmacm.AddrInfo]. [SetPaths] sets the path of a connection, whatever its
// addresses, instead of asking the subnet administrator for one.
package ib
