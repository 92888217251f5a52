// SPDX-License-Identifier: Apache-2.0

package netlink

// Conn is a netlink socket for requests to the kernel. It must not be used
// concurrently.
type Conn struct {
	socket   socket
	sequence uint32
}

// Open opens a netlink socket for a protocol such as syscall.NETLINK_ROUTE. It
// fails with syscall.EPROTONOSUPPORT if the kernel does not have the protocol.
func Open(protocol int) (*Conn, error) {
	s, err := openSocket(protocol)
	if err != nil {
		return nil, err
	}
	return &Conn{socket: s}, nil
}

// Close closes the socket.
func (c *Conn) Close() error { return c.socket.close() }

// Ask sends a request and returns the bodies of the messages that answer it:
// one message, or any number if flags has Dump. If the kernel refuses the
// request, the error is a syscall.Errno.
func (c *Conn) Ask(kind, flags uint16, body []byte) ([][]byte, error) {
	c.sequence++
	if err := c.socket.send(request(kind, flags, c.sequence, body)); err != nil {
		return nil, err
	}
	all := answers{sequence: c.sequence}
	for {
		b, err := c.socket.receive()
		if err != nil {
			return nil, err
		}
		if done, err := all.add(b); done || err != nil {
			return all.messages, err
		}
	}
}
