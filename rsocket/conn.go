package rsocket

import (
	"io"
	"net"
	"time"
)

// A Conn is a connection. It is a net.Conn, and like a *net.TCPConn it can close each direction by itself. Its methods may be called
// concurrently.
//
// Errors are *net.OpErrors, except io.EOF, and match
//
//   - os.ErrDeadlineExceeded when a deadline has passed,
//   - net.ErrClosed after Close,
//   - syscall.EPIPE for a Write after CloseWrite,
//   - syscall.ECONNRESET when the peer has closed the connection (Write only), or has ended without doing so,
//   - syscall.ETIMEDOUT when the peer's device does not answer any more,
//   - syscall.EPROTO when the peer has violated the protocol.
type Conn struct{}

var (
	_ net.Conn      = (*Conn)(nil)
	_ io.ReaderFrom = (*Conn)(nil)
	_ io.WriterTo   = (*Conn)(nil)
)

// Read reads what has arrived, up to len(b) bytes, and blocks while there is nothing. It returns io.EOF when the peer has closed its
// end and everything was read.
func (c *Conn) Read(b []byte) (int, error) { return 0, errTODO }

// Write writes b. It blocks until all of it was copied and given to the device, and so while the peer has no room for it; the peer's
// program need not have read it then.
func (c *Conn) Write(b []byte) (int, error) { return 0, errTODO }

// WriteBuffers writes the buffers, one after the other, in as few messages as possible. It removes what it has written from *v, as
// net.Buffers.WriteTo does.
func (c *Conn) WriteBuffers(v *net.Buffers) (int64, error) { return 0, errTODO }

// ReadFrom writes what it reads from r until the end of r. It reads straight into memory that the device sends from.
// io.Copy uses it.
func (c *Conn) ReadFrom(r io.Reader) (int64, error) { return 0, errTODO }

// WriteTo writes what arrives to w, until the end of file. It passes w the memory that the peer has written to. As for every
// Write, w must not keep it. A Read meanwhile waits. io.Copy uses it.
func (c *Conn) WriteTo(w io.Writer) (int64, error) { return 0, errTODO }

// Peek returns the next n bytes without reading them, and blocks until they are there. They are valid until the next call
// that reads. If there will be fewer, because of the end of file or an error, it returns those, and why. n may be up to half
// of Config.ReadBuffer: beyond, the error is bufio.ErrBufferFull.
//
// The bytes are in memory that the peer can write to: one that breaks the protocol can change them after the program has
// looked.
func (c *Conn) Peek(n int) ([]byte, error) { return nil, errTODO }

// Discard skips the next n bytes, and blocks until they have arrived. It returns how many it has skipped, and if these are
// fewer, why.
func (c *Conn) Discard(n int) (int, error) { return 0, errTODO }

// Buffered returns how many bytes can be read at once. Some may have arrived that nobody has looked for yet.
func (c *Conn) Buffered() int { return 0 }

// Close closes both directions. The peer reads the end of file after all that was written. Close does not heed deadlines, and
// blocks until the peer's device has everything, at most for the time that SetLinger says. Reads and Writes in progress fail with an error
// matching net.ErrClosed. Further calls do nothing.
func (c *Conn) Close() error { return errTODO }

// CloseRead makes Read return io.EOF. The peer is not told: when its window is full, its writes block.
func (c *Conn) CloseRead() error { return errTODO }

// CloseWrite ends what this end writes: the peer reads the end of file after all that was written, and can still
// write.
func (c *Conn) CloseWrite() error { return errTODO }

// LocalAddr returns the local address, an Addr.
func (c *Conn) LocalAddr() net.Addr { return Addr{} }

// RemoteAddr returns the peer's address, an Addr.
func (c *Conn) RemoteAddr() net.Addr { return Addr{} }

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error { return errTODO }

// SetReadDeadline sets when calls that read fail, also those in progress. The zero time means never.
func (c *Conn) SetReadDeadline(t time.Time) error { return errTODO }

// SetWriteDeadline sets when calls that write fail, also those in progress. The zero time means never.
func (c *Conn) SetWriteDeadline(t time.Time) error { return errTODO }

// SetLinger sets how many seconds Close waits for what was written to arrive. With 0, Close drops it, and the peer's Read fails with
// an error matching syscall.ECONNRESET. A negative value restores DefaultLinger.
func (c *Conn) SetLinger(sec int) error { return errTODO }

// DefaultLinger is how long Close waits unless SetLinger says otherwise.
const DefaultLinger = 5 * time.Second

// SetKeepAlive sets whether this end checks, while it has nothing on its way, that the peer's device still answers. A check is an RDMA
// write of no bytes, which the peer's program does not notice. Whoever waits in Read learns of a peer that does not answer.
func (c *Conn) SetKeepAlive(on bool) error { return errTODO }

// SetKeepAlivePeriod sets how often the check is done; d must be positive.
func (c *Conn) SetKeepAlivePeriod(d time.Duration) error { return errTODO }
