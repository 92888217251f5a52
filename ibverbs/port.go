package ibverbs

import (
	"fmt"
	"syscall"

	"github.com/verbena-go/verbena/internal/cerr"
)

// portNumber checks a port number before it is cut down to what C takes.
func portNumber(op string, port int) (uint8, error) {
	if port < 1 || port > 255 {
		return 0, &cerr.Error{Op: op, Object: fmt.Sprintf("port %d", port), Errno: syscall.EINVAL}
	}
	return uint8(port), nil
}

func portName(c *Context, port int) string { return fmt.Sprintf("%s port %d", c.Name(), port) }
