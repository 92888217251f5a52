// SPDX-License-Identifier: Apache-2.0

package check

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// bitField is the place of a bit-field. No constant expression of C has this
// place. So the compiler makes an object file with structs in each of which one
// bit-field is set.
type bitField struct {
	name, designator string // name of the struct, and path of the member in it
	at, width        int64
}

// bitDifferences returns a line for each fact about a bit-field that the
// compiler contradicts.
func bitDifferences(c *Compiler, include string, facts []Fact, d Declarations) ([]string, error) {
	if len(facts) == 0 {
		return nil, nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "#include %q\n", include)
	for i, f := range facts {
		fmt.Fprintf(&b, "const %s verbena_bits%d = { .%s = -1 };\n", f.bits.name, i, f.bits.designator)
	}
	dir, err := os.MkdirTemp("", "verbena-check-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	object := filepath.Join(dir, "bits.o")
	if _, errs, err := c.run(b.String(), slices.Concat([]string{"-c", "-w", "-std=gnu17", "-o", object}, folders(d.Include, d.After))...); err != nil {
		return nil, fmt.Errorf("%w%s", err, shorten(errs))
	}
	memory, order, err := variables(object)
	if err != nil {
		return nil, err
	}
	var out []string
	for i, f := range facts {
		at, width, ok := set(memory[fmt.Sprintf("verbena_bits%d", i)], order)
		if said := fmt.Sprintf("%d from %d", width, at); !ok || said != f.Want {
			out = append(out, fmt.Sprintf("%s: snapshot %s, compiler %s", f.Name, f.Want, said))
		}
	}
	return out, nil
}

// variables returns the memory of an object file's variables.
func variables(object string) (map[string][]byte, binary.ByteOrder, error) {
	f, err := elf.Open(object)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		return nil, nil, err
	}
	memory := map[string][]byte{}
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) != elf.STT_OBJECT || int(s.Section) >= len(f.Sections) || f.Sections[s.Section].Type == elf.SHT_NOBITS {
			continue // no bit is set in a section without content
		}
		data, err := f.Sections[s.Section].Data()
		if err != nil {
			return nil, nil, err
		}
		if s.Value+s.Size > uint64(len(data)) {
			return nil, nil, errors.New(s.Name + " is not in its section")
		}
		memory[s.Name] = data[s.Value : s.Value+s.Size]
	}
	return memory, f.ByteOrder, nil
}

// set returns the place and number of the bits that are set in memory. ok is
// false unless they are adjacent.
func set(memory []byte, order binary.ByteOrder) (at, width int, ok bool) {
	first, last := -1, -1
	for i := range 8 * len(memory) {
		shift := i % 8
		if order == binary.BigEndian {
			shift = 7 - shift
		}
		if memory[i/8]>>shift&1 != 0 {
			if width++; first < 0 {
				first = i
			}
			last = i
		}
	}
	return first, width, width > 0 && last-first+1 == width
}
