// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/since"
)

// Input has the snapshots to emit bindings for, and the facts about them.
type Input struct {
	API       *api.API   // the newest snapshot
	Snapshots []*api.API // all snapshots, oldest first
	Known     *conventions.Table
	Since     *since.Table
	Strings   map[string]*conventions.Strings // texts of an enum's values, by enum
	Manual    map[string]string               // name of the manual page, by function
	Providers []*conventions.Provider         // drivers' libraries
	// Base is the input of libibverbs and librdmacm if this one is for
	// other libraries whose headers include theirs. Otherwise it is nil.
	Base *Input
	// Alone reports whether the input is for other libraries whose headers
	// include none of libibverbs' and librdmacm's.
	Alone bool
	// Path is the import path of the package if it belongs to another
	// module; otherwise it is empty. See Render.
	Path string
	// places says where the files manual.txt and strings.txt speak of a name, by
	// file and name.
	places map[string]string
}

// Load reads the facts in a folder: headers/, or a folder in it that describes
// other libraries.
func Load(facts string) (Input, error) {
	if !IsPart(facts) {
		return loadOver(facts, nil)
	}
	base, err := Load(filepath.Dir(filepath.Clean(facts)))
	if err != nil {
		return Input{}, err
	}
	return loadOver(facts, &base)
}

// loadOver reads the facts in a folder. base is the input for the headers that
// these headers include, or nil.
func loadOver(facts string, base *Input) (in Input, err error) {
	in.Base = base
	if in.Snapshots, err = api.LoadAll(filepath.Join(facts, "api")); err != nil {
		return in, err
	}
	in.API = in.Snapshots[len(in.Snapshots)-1]
	if in.Known, err = conventions.Load(filepath.Join(facts, conventionsFile)); err != nil {
		return in, err
	}
	if in.Since, err = since.Load(filepath.Join(facts, "since.txt")); err != nil {
		return in, err
	}
	in.places = map[string]string{}
	for _, name := range []string{manualFile, stringsFile} {
		if err = in.locate(filepath.Join(facts, name), name); err != nil {
			return in, err
		}
	}
	if in.Manual, err = conventions.LoadManual(filepath.Join(facts, manualFile)); err != nil {
		return in, err
	}
	in.Alone = in.Base == nil && len(in.Known.Libraries) > 0
	if in.Base != nil || in.Alone {
		return in, nil
	}
	if in.Strings, err = conventions.LoadStrings(filepath.Join(facts, stringsFile)); err != nil {
		return in, err
	}
	in.Providers, err = conventions.LoadProviders(filepath.Join(facts, "providers.txt"))
	return in, err
}

// LoadAll reads the facts in headers/, and then those in each folder in it that
// describes other libraries.
func LoadAll(facts string) ([]Input, error) {
	folders, err := Folders(facts)
	if err != nil {
		return nil, err
	}
	first, err := Load(folders[0])
	if err != nil {
		return nil, err
	}
	all := []Input{first}
	for _, folder := range folders[1:] { // these folders are in the first one
		in, err := loadOver(folder, &first)
		if err != nil {
			return nil, err
		}
		all = append(all, in)
	}
	return all, nil
}

// Folders returns a folder of facts, and the folders in it that describe other
// libraries.
func Folders(facts string) ([]string, error) {
	found, err := filepath.Glob(filepath.Join(facts, "*", conventionsFile))
	folders := []string{facts}
	for _, path := range found {
		folders = append(folders, filepath.Dir(path))
	}
	return folders, err
}

const (
	conventionsFile = "conventions.txt"
	manualFile      = "manual.txt"
	stringsFile     = "strings.txt"
)

// locate notes where a file speaks of names. There may be no such file.
func (in Input) locate(path, file string) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line, _, _ = strings.Cut(line, "#")
		for _, word := range strings.Fields(line) {
			if in.places[file+" "+word] == "" {
				in.places[file+" "+word] = fmt.Sprintf("%s:%d", path, number)
			}
		}
	}
	return err
}

// IsPart reports whether a folder of facts is in another folder of facts. Its
// headers include those that the outer folder describes.
func IsPart(facts string) bool {
	_, err := os.Stat(filepath.Join(filepath.Dir(filepath.Clean(facts)), conventionsFile))
	return err == nil
}

// project returns the name of the project to which the headers and their
// versions belong.
func (in Input) project() string {
	if in.Alone && len(in.Known.Libraries) > 0 {
		return in.Known.Libraries[0].Name
	}
	return "rdma-core"
}

// Whole returns the newest snapshot, joined with that of Base if there is one.
func (in Input) Whole() *api.API { return in.whole().API }

// whole returns in, joined with Base if there is one.
func (in Input) whole() Input {
	if in.Base == nil {
		in.Alone = in.Alone || len(in.Known.Libraries) > 0
		return in
	}
	w := in
	w.Base = nil
	w.API = in.API.Over(in.Base.API)
	w.Known = in.Known.Over(in.Base.Known)
	w.Strings = in.Base.Strings
	return w
}
