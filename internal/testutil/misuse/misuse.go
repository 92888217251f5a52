// SPDX-License-Identifier: Apache-2.0

// Package misuse calls all exported methods of an object, and functions that
// take the object, with wrong arguments. Tests use it to check that such calls
// fail properly.
package misuse

import (
	"fmt"
	"io"
	"reflect"
	"runtime"
	"strings"
)

// Method is a method bound to its object, or a function bound to its first
// argument.
type Method struct {
	Name  string
	Fails bool // whether the last result is an error or an iterator over errors
	call  reflect.Value
}

var errorType = reflect.TypeFor[error]()

// Methods returns the exported methods of an object, and the functions whose
// first parameter has the object's type.
func Methods(object any, functions ...any) []Method {
	v := reflect.ValueOf(object)
	var methods []Method
	for i := range v.NumMethod() {
		methods = append(methods, method(v.Type().Method(i).Name, v.Method(i)))
	}
	for _, f := range functions {
		if t := reflect.TypeOf(f); t.In(0) == v.Type() {
			methods = append(methods, method(Name(f), bind(reflect.ValueOf(f), v)))
		}
	}
	return methods
}

// method returns a Method for a function.
func method(name string, call reflect.Value) Method {
	t := call.Type()
	last := t.NumOut() - 1
	fails := last >= 0 && (t.Out(last) == errorType || iteratesErrors(t.Out(last)))
	return Method{Name: name, Fails: fails, call: call}
}

// Name returns the name of a function, with the name of its package.
func Name(function any) string {
	name := runtime.FuncForPC(reflect.ValueOf(function).Pointer()).Name()
	return name[strings.LastIndex(name, "/")+1:]
}

// bind returns the function f with its first argument fixed.
func bind(f, first reflect.Value) reflect.Value {
	t := f.Type()
	var in, out []reflect.Type
	for i := range t.NumIn() - 1 {
		in = append(in, t.In(i+1))
	}
	for i := range t.NumOut() {
		out = append(out, t.Out(i))
	}
	call := f.Call
	if t.IsVariadic() {
		call = f.CallSlice
	}
	return reflect.MakeFunc(reflect.FuncOf(in, out, t.IsVariadic()), func(args []reflect.Value) []reflect.Value {
		return call(append([]reflect.Value{first}, args...))
	})
}

// iteratesErrors reports whether t is the type of an iterator over pairs of a
// value and an error.
func iteratesErrors(t reflect.Type) bool {
	return t.CanSeq2() && t.Kind() == reflect.Func && t.In(0).In(1) == errorType
}

// Getter reports whether the method only returns a property of the object.
func (m Method) Getter() bool {
	t := m.call.Type()
	return t.NumIn() == 0 && t.NumOut() == 1 && !m.Fails
}

// Takes returns the types of the method's parameters.
func (m Method) Takes() []reflect.Type {
	var types []reflect.Type
	for i := range m.call.Type().NumIn() {
		types = append(types, m.call.Type().In(i))
	}
	return types
}

// Call calls the method with arguments that args makes, and closes the objects
// that it returns. If the method panics, the error is a *Panic.
func (m Method) Call(args func(reflect.Type) reflect.Value) (results []any, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &Panic{m.Name, v}
		}
	}()
	t := m.call.Type()
	in := make([]reflect.Value, t.NumIn())
	for i := range in {
		in[i] = args(t.In(i))
	}
	call := m.call.Call
	if t.IsVariadic() {
		call = m.call.CallSlice
	}
	for _, v := range call(in) {
		if v.Type() == errorType {
			err, _ = v.Interface().(error)
			continue
		}
		if iteratesErrors(v.Type()) {
			for _, e := range v.Seq2() {
				err, _ = e.Interface().(error)
				break
			}
			continue
		}
		results = append(results, v.Interface())
	}
	return results, closeAll(m, results, err)
}

// closeAll closes the objects that a method has returned.
func closeAll(m Method, results []any, err error) error {
	if err != nil || m.Getter() {
		return err
	}
	for _, r := range results {
		for _, c := range closers(reflect.ValueOf(r)) {
			if err := c.Close(); err != nil {
				return fmt.Errorf("close what %s made: %w", m.Name, err)
			}
		}
	}
	return nil
}

// closers returns the objects to close: the result itself, or those in its
// fields.
func closers(result reflect.Value) (found []io.Closer) {
	if !result.IsValid() || result.Kind() == reflect.Pointer && result.IsNil() {
		return nil
	}
	if c, ok := result.Interface().(io.Closer); ok {
		return []io.Closer{c}
	}
	if result.Kind() == reflect.Struct {
		for field, v := range result.Fields() {
			if field.IsExported() {
				found = append(found, closers(v)...)
			}
		}
	}
	return found
}

// Panic is the error for a method that panicked.
type Panic struct {
	Method string
	Value  any
}

func (p *Panic) Error() string { return fmt.Sprintf("%s panics: %v", p.Method, p.Value) }
