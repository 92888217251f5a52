package cerr

var converters []func(error) error

// Convert has every error that this package makes from now on passed to
// convert, which returns it as one of its package's own types, or nil if it has
// none for it. Packages call Convert when they are initialised: whoever can
// name a package's type imports it, and so meets no other.
func Convert(convert func(error) error) { converters = append(converters, convert) }

// public returns err as the type that programs know.
func public(err error) error {
	for _, convert := range converters {
		if e := convert(err); e != nil {
			return e
		}
	}
	return err
}
