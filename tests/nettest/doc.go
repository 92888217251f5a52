// SPDX-License-Identifier: Apache-2.0

// Package nettest has the tests of golang.org/x/net/nettest for the connections
// of package rsocket.
package nettest
