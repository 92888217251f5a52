// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"errors"
	"strings"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// Kind is the value of the flag for the kind of connection: reliable, or
// extended reliable.
type Kind struct{ Extended bool }

// Add adds the flag to the flags of a program.
func (k *Kind) Add(f *program.Flags) {
	f.VarP(k, "connection", "c", "`kind` of connection: r, reliable, or x, extended reliable (XRC)")
}

// Set sets the kind from its first letter, r or x, as C does.
func (k *Kind) Set(text string) error {
	switch strings.ToLower(text + " ")[0] {
	case 'r':
		k.Extended = false
	case 'x':
		k.Extended = true
	default:
		return errors.New("expected r or x")
	}
	return nil
}

func (k *Kind) String() string {
	if k.Extended {
		return "x"
	}
	return "r"
}

// Type returns the name of the value's type. It is a method of pflag.Value.
func (k *Kind) Type() string { return "kind" }

// Hints returns the hints for looking up the address of an end. extended is the
// queue pair type in the hints for an extended connection.
func (k *Kind) Hints(extended ibverbs.QPType) *rdmacm.AddrInfo {
	if k.Extended {
		return &rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceIB, QPType: extended}
	}
	return &rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceTCP, QPType: ibverbs.QPTypeRC}
}
