package rping

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
)

const (
	minSize     = len("rdma-ping-2147483647: ") + 1 // the longest beginning, and a zero; as in C
	maxSize     = 64<<10 - 1                        // as in C
	maxCount    = 1<<31 - 1
	defaultPort = 7174
)

type options struct {
	server, persistent, manualQP bool
	verbose, validate, debug     bool
	size, count, port            int
	address, source              string
	stdout, stderr               io.Writer
}

var errHelp = errors.New("help")

// parse reads the arguments as getopt does in C: flags may be joined, and a
// value may follow its flag at once.
func parse(args []string) (*options, error) {
	o := &options{size: 64, port: defaultPort}
	var client bool
	for i := 0; i < len(args); i++ {
		flags := args[i]
		if len(flags) < 2 || flags[0] != '-' {
			return nil, fmt.Errorf("unexpected argument %q", flags)
		}
		for j := 1; j < len(flags); j++ {
			switch flags[j] {
			case 's':
				o.server = true
			case 'c':
				client = true
			case 'P':
				o.persistent = true
			case 'q':
				o.manualQP = true
			case 'v':
				o.verbose = true
			case 'V':
				o.validate = true
			case 'd':
				o.debug = true
			case 'h':
				return nil, errHelp
			case 'a', 'I', 'S', 'C', 'p':
				value := flags[j+1:]
				if value == "" {
					if i++; i == len(args) {
						return nil, fmt.Errorf("-%c needs a value; -h lists the flags", flags[j])
					}
					value = args[i]
				}
				if err := o.set(flags[j], value); err != nil {
					return nil, err
				}
				j = len(flags)
			default:
				return nil, fmt.Errorf("there is no flag -%c; -h lists them", flags[j])
			}
		}
	}
	switch {
	case client == o.server:
		return nil, errors.New("either -s or -c must be given; -h lists the flags")
	case client && o.address == "":
		return nil, errors.New("-c needs -a, the server's address")
	}
	return o, nil
}

// set sets the option of a flag that has a value.
func (o *options) set(flag byte, value string) error {
	var target *int
	var low, high int
	switch flag {
	case 'a':
		o.address = value
		return nil
	case 'I':
		o.source = value
		return nil
	case 'S':
		target, low, high = &o.size, minSize, maxSize
	case 'C':
		target, low, high = &o.count, 0, maxCount
	case 'p':
		target, low, high = &o.port, 1, 65535
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < low || n > high {
		return fmt.Errorf("-%c %s: expected a number from %d to %d", flag, value, low, high)
	}
	*target = n
	return nil
}

// dialAddress is the server's address and port.
func (o *options) dialAddress() string { return net.JoinHostPort(o.address, strconv.Itoa(o.port)) }

func (o *options) debugf(format string, args ...any) {
	if o.debug {
		fmt.Fprintf(o.stdout, format+"\n", args...)
	}
}
