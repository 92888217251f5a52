// SPDX-License-Identifier: Apache-2.0

package program

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"
)

// Flags are the flags of a program. Each has a letter, as in C, and a name. In
// the usage of a flag, a word in backquotes is the name of the flag's value.
type Flags struct{ *pflag.FlagSet }

func newFlags(program string) *Flags {
	flags := pflag.NewFlagSet(program, pflag.ContinueOnError)
	flags.SortFlags = false
	flags.Usage = func() {} // Main prints it
	return &Flags{flags}
}

// Number adds a flag for a number from low to high. The initial *value is the
// default.
func (f *Flags) Number(value *int, name, letter string, low, high int, usage string) {
	f.VarP(&number{value, low, high}, name, letter, fmt.Sprintf("%s, from %d to %d", usage, low, high))
}

// Port adds a flag for a port number.
func (f *Flags) Port(value *int, usage string) { f.Number(value, "port", "p", 1, 1<<16-1, usage) }

// defaultPort is the port that programs use without -p.
const defaultPort = 7471

// Server is the server that a client connects to.
type Server struct {
	Address string
	Port    int
}

// Add adds the flags for the server's address.
func (s *Server) Add(f *Flags) {
	s.Port = defaultPort
	f.StringVarP(&s.Address, "server", "s", "", "`address` of the server's RDMA device")
	f.Port(&s.Port, "`port` of the server")
}

// Check returns an error for Program.Run if the address is missing.
func (s *Server) Check() error {
	if s.Address == "" {
		return Misuse("-s is missing")
	}
	return nil
}

// Service returns the port as text, for rdmacm.LookUp.
func (s *Server) Service() string { return strconv.Itoa(s.Port) }

// Milliseconds adds a flag for a time in whole milliseconds.
func (f *Flags) Milliseconds(value *time.Duration, name, letter, usage string) {
	f.VarP((*milliseconds)(value), name, letter, usage)
}

// Seconds adds a flag for a time in seconds, which may have a fraction and is
// at least low.
func (f *Flags) Seconds(value *time.Duration, name, letter string, low time.Duration, usage string) {
	f.VarP(&seconds{value, low}, name, letter, usage)
}

// number is the value of a flag that is a number between two bounds.
type number struct {
	value     *int
	low, high int
}

func (n *number) Set(text string) error {
	value, err := strconv.Atoi(text)
	if err != nil || value < n.low || value > n.high {
		return fmt.Errorf("expected a number from %d to %d", n.low, n.high)
	}
	*n.value = value
	return nil
}

func (n *number) String() string {
	if n.value == nil || *n.value < n.low { // a value out of range stands for no default
		return ""
	}
	return strconv.Itoa(*n.value)
}

func (n *number) Type() string { return "int" }

const maxMilliseconds = 1 << 20

// milliseconds is the value of a flag that is a number of milliseconds.
type milliseconds time.Duration

func (m *milliseconds) Set(text string) error {
	value, err := strconv.Atoi(text)
	if err != nil || value < 1 || value > maxMilliseconds {
		return fmt.Errorf("expected milliseconds from 1 to %d", maxMilliseconds)
	}
	*m = milliseconds(time.Duration(value) * time.Millisecond)
	return nil
}

func (m *milliseconds) String() string {
	return strconv.FormatInt(time.Duration(*m).Milliseconds(), 10)
}

func (m *milliseconds) Type() string { return "ms" }

const maxSeconds = 1<<31 - 1

// seconds is the value of a flag that is a decimal number of seconds.
type seconds struct {
	value *time.Duration
	low   time.Duration
}

func (s *seconds) Set(text string) error {
	value, err := strconv.ParseFloat(text, 64)
	if err != nil || !(value >= s.low.Seconds()) || value > maxSeconds {
		return fmt.Errorf("expected seconds from %g to %d", s.low.Seconds(), maxSeconds)
	}
	*s.value = time.Duration(value * float64(time.Second))
	return nil
}

func (s *seconds) String() string {
	if s.value == nil || *s.value < s.low {
		return ""
	}
	return strconv.FormatFloat(s.value.Seconds(), 'f', -1, 64)
}

func (s *seconds) Type() string { return "seconds" }
