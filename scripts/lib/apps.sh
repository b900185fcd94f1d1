# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# The applications of scripts/apps. Of each: the Debian packages it is in (of NAME,MPI where they depend on the MPI library),
# the MPI libraries it is there for, and three functions:
#
#   prepare_NAME RANKS MPI  makes the input, in the current directory; what it says goes to a log, but to descriptor 3
#                           what the user should know
#   command_NAME MPI RANKS  sets the array `argv` to what the ranks run there; run once per measurement
#   result_NAME             prints what has to be the same, from the file `output` of the run
#
# The first two find the words of the chosen input in the array `input` (app_inputs below).
# shellcheck disable=SC2154 # input is set by scripts/apps

# What is there; a subset of it is what --quick runs.
apps=(lammps qe xzllt xdtrd xdlu xdinv fftw petsc-mumps petsc-hypre icofoam hpcc h5py mpi4py-fft boost nwchem cg)
quick_apps=(xdtrd fftw boost cg)

declare -A app_packages=(
    [lammps]=lammps
    [qe]='quantum-espresso quantum-espresso-data'
    [xzllt]=scalapack-mpi-test [xdtrd]=scalapack-mpi-test [xdlu]=scalapack-mpi-test [xdinv]=scalapack-mpi-test
    [fftw]='libfftw3-dev libfftw3-mpi-dev libopenmpi-dev'
    [petsc-mumps]='libpetsc-real-dev libpetsc3.18-dev-examples'
    [petsc-hypre]='libpetsc-real-dev libpetsc3.18-dev-examples'
    [icofoam]='openfoam openfoam-examples'
    [hpcc]=hpcc
    [h5py]='python3-h5py-mpi python3-mpi4py'
    [mpi4py-fft]='python3-mpi4py-fft python3-mpi4py'
    # What PyPI's are built with.
    [mpi4py-fft,mpich]='python3-venv python3-dev libfftw3-dev gcc'
    [boost]='libboost-mpi-dev libboost-serialization-dev g++'
    [nwchem]=nwchem-openmpi
    [cg]=libopenmpi-dev [cg,mpich]=libmpich-dev
)
declare -A app_mpis=(
    [xzllt]='openmpi mpich' [xdtrd]='openmpi mpich' [xdlu]='openmpi mpich' [xdinv]='openmpi mpich'
    [mpi4py-fft]='openmpi mpich' [cg]='openmpi mpich'
)

# The inputs of each application: `normal` computes most of the time; of `strong` (strong scaling) each rank has so little
# that MPI takes a third of the run, or more, with four ranks on two processors. A line for both of each application; what
# the words mean stands above.
app_inputs='
# edge of the cube in cells of four atoms, steps
lammps      normal  20 150
lammps      strong  8 800
# cut-off of the plane waves in Ry, k-points along an edge
qe          normal  36.0 6
qe          strong  12.0 6
# rows of the matrices, rows of the blocks; of xdinv the kinds of matrices as well
xzllt       normal  300,320,340,360,380,400 8,16,32
xzllt       strong  40,60,80,100,120,140,160,180,200 2,3,4,5,6,8,10,12
xdtrd       normal  300,330,360,390 16,32
xdtrd       strong  40,60,80,100,120,140 2,4,6,8
xdlu        normal  400,420,440,460,480,500 8,16,32
xdlu        strong  40,60,80,100,120,140,160,180,200 2,3,4,5,6,8,10,12
xdinv       normal  400,440,480 16,32 GEN,UPD
xdinv       strong  40,60,80,100,120,140,160 2,3,4,5,6,8,10 GEN,UPD
# edge of the square, transforms there and back
fftw        normal  1024 20
fftw        strong  64 12000
# edge of the grid, what the solver is told
petsc-mumps normal  300 -ksp_type preonly
petsc-mumps strong  40 -ksp_type richardson -ksp_convergence_test skip -ksp_max_it 600
petsc-hypre normal  500 -ksp_type cg -ksp_rtol 1e-10
petsc-hypre strong  40 -ksp_type richardson -ksp_richardson_scale 0.01 -ksp_rtol 1e-9
# edge of the square in cells, last time and its step in seconds
icofoam     normal  100 0.015 0.0005
icofoam     strong  40 0.3 0.001
# rows of the matrices
hpcc        normal  900
hpcc        strong  200
# edge of the square, rounds
h5py        normal  1200 5
h5py        strong  120 20
# edge of the cube, transforms there and back
mpi4py-fft  normal  96 60
mpi4py-fft  strong  16 3000
# particles, numbers for each other rank, strings, rounds
boost       normal  20000 50000 2000 600
boost       strong  200 500 20 20000
# basis, molecules
nwchem      normal  6-311g** 2
nwchem      strong  sto-3g 1
# edge of the square, right-hand sides
cg          normal  256 2
cg          strong  64 200
'

# input_of APPLICATION INPUT: the words of this input, in the array `input`. Fails if there is none.
input_of() {
    local app name
    while read -r app name input_words; do
        if [[ $app == "$1" && $name == "$2" ]]; then
            read -ra input <<<"$input_words"
            return
        fi
    done <<<"$app_inputs"
    return 1
}

# listed WORDS: how many words with commas between them there are, and the words, one line each.
listed() {
    local words
    IFS=, read -ra words <<<"$1"
    printf '%s\n%s' "${#words[@]}" "${words[*]}"
}

# Solid argon after Lennard and Jones.
prepare_lammps() {
    cat >in.lj <<TEXT
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 ${input[0]} 0 ${input[0]} 0 ${input[0]}
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 1.44 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify delay 0 every 20 check no
fix 1 all nve
thermo 50
run ${input[1]}
TEXT
}
command_lammps() { argv=(lmp -in in.lj -log none); }
result_lammps() { awk '$1 == "Step" { on = 1 } /^Loop/ { on = 0 } on' output; }

# Silicon, the ground state.
prepare_qe() {
    cat >si.in <<TEXT
&control
 calculation='scf', prefix='si', pseudo_dir='/usr/share/espresso/pseudo', outdir='./out'
/
&system
 ibrav=2, celldm(1)=10.2, nat=2, ntyp=1, ecutwfc=${input[0]}
/
&electrons
 conv_thr=1.0d-8
/
ATOMIC_SPECIES
 Si 28.086 Si.pz-vbc.UPF
ATOMIC_POSITIONS alat
 Si 0.00 0.00 0.00
 Si 0.25 0.25 0.25
K_POINTS automatic
 ${input[1]} ${input[1]} ${input[1]} 1 1 1
TEXT
}
command_qe() { argv=(pw.x -in si.in); }
result_qe() { sed -n '/^!/p; /convergence has been/p' output; }

# grids RANKS: P and Q of a process grid that is as square as it can be.
grids() {
    local p=1
    while ((p * p * 2 <= $1)); do ((p *= 2)); done
    echo "$p $(($1 / p))"
}
# scalapack NAME MPI: the test's program.
scalapack() {
    argv=("/usr/lib/$(gcc -print-multiarch)/scalapack/$2-tests/$1")
}
# The table without its times and residuals, whose last digits may differ: what was tried, and whether it passed.
scalapack_result() {
    awk '/PASSED|FAILED/ { print $1, $2, $3, $4, $5, $NF } /^Finished|tests completed/' output
}
# The tests have room for matrices of about 400 to 500 rows. factor_input TITLE FILE RANKS FIRST-LINES: without iterative
# refinement, in which ranks may disagree about going on, so that the program hangs now and then, plain as well.
factor_input() {
    local p q
    read -r p q <<<"$(grids "$3")"
    cat >"$2.dat" <<TEXT
'$1'
'MPI'
'$2.out'
6
$4
$(listed "${input[1]}")
1
9
1
7
1
$p
$q
3.0
F
TEXT
}
prepare_xzllt() { factor_input LLt LLT "$1" $'\'U\'\n'"$(listed "${input[0]}")"; }
command_xzllt() { scalapack xzllt "$1"; }
result_xzllt() { scalapack_result; }
prepare_xdlu() {
    local rows
    rows=$(listed "${input[0]}")
    factor_input LU LU "$1" "$rows"$'\n'"${rows#*$'\n'}"
}
command_xdlu() { scalapack xdlu "$1"; }
result_xdlu() { scalapack_result; }
prepare_xdtrd() {
    local p q
    read -r p q <<<"$(grids "$1")"
    printf "%s\n" "'TRD'" "'MPI'" "'TRD.out'" 6 "'L'" "$(listed "${input[0]}")" "$(listed "${input[1]}")" \
        1 "$p" "$q" 10.0 >TRD.dat
}
command_xdtrd() { scalapack xdtrd "$1"; }
result_xdtrd() { scalapack_result; }
prepare_xdinv() {
    local p q kinds
    read -r p q <<<"$(grids "$1")"
    kinds=$(listed "'${input[2]//,/\',\'}'")
    printf "%s\n" "'Inversion'" "'MPI'" "'INV.out'" 6 "$kinds" "$(listed "${input[0]}")" "$(listed "${input[1]}")" \
        1 "$p" "$q" 1.0 >INV.dat
}
command_xdinv() { scalapack xdinv "$1"; }
result_xdinv() { scalapack_result; }

prepare_fftw() { mpicc.openmpi -O2 -o fftw "$root/tests/apps/fftw.c" -lfftw3_mpi -lfftw3 -lm; }
command_fftw() { argv=(./fftw "${input[@]}"); }
result_fftw() { grep sums output; }

# Laplace's equation on a grid, KSP's second tutorial.
petsc_tutorial() {
    local flags
    flags=$(pkg-config --cflags --libs petsc)
    # shellcheck disable=SC2086 # words
    mpicc.openmpi -O2 -w -o ex2 /usr/share/petsc/3.18/share/petsc/examples/src/ksp/ksp/tutorials/ex2.c $flags -lm
}
prepare_petsc-mumps() { petsc_tutorial; }
command_petsc-mumps() {
    argv=(./ex2 -m "${input[0]}" -n "${input[0]}" -pc_type lu -pc_factor_mat_solver_type mumps "${input[@]:1}")
}
# The last digits depend on the order in which parts arrive.
petsc_result() { awk '/Norm of error/ { print "iterations", $NF, ($4 < 1e-6 ? "small error" : "LARGE ERROR") }' output; }
result_petsc-mumps() { petsc_result; }
prepare_petsc-hypre() { petsc_tutorial; }
command_petsc-hypre() { argv=(./ex2 -m "${input[0]}" -n "${input[0]}" -pc_type hypre "${input[@]:1}"); }
result_petsc-hypre() { petsc_result; }

# The cavity of the tutorial, of other cells, in as many parts as there are ranks.
prepare_icofoam() {
    # Where OpenFOAM looks for its settings.
    export WM_PROJECT_DIR=/usr/share/openfoam
    cp -r /usr/share/doc/openfoam-examples/examples/incompressible/icoFoam/cavity/cavity/. .
    find . -name '*.gz' -exec gunzip {} +
    sed -i "s/(20 20 1)/(${input[0]} ${input[0]} 1)/" system/blockMeshDict
    sed -i "s/^endTime .*/endTime ${input[1]};/; s/^deltaT .*/deltaT ${input[2]};/; s/^writeInterval .*/writeInterval 100000;/" \
        system/controlDict
    cat >system/decomposeParDict <<TEXT
FoamFile { version 2.0; format ascii; class dictionary; object decomposeParDict; }
numberOfSubdomains $1;
method simple;
simpleCoeffs { n ($(grids "$1" | tr ' ' '\n' | sort -n | tr '\n' ' ')1); delta 0.001; }
TEXT
    blockMesh >log.blockMesh || { tail -n 3 log.blockMesh && return 1; }
    decomposePar >log.decomposePar || { tail -n 3 log.decomposePar && return 1; }
}
command_icofoam() { argv=(icoFoam -parallel); }
# Courant numbers, which follow from the velocities. Residuals have digits that depend on the order in which plain and
# libcopy add the numbers of more than two ranks (docs/mpi.md, reductions of floating-point numbers).
result_icofoam() { grep Courant output; }

# The HPC Challenge's suite; what fails says so.
prepare_hpcc() {
    local p q
    read -r p q <<<"$(grids "$1")"
    sed -n 1,30p /usr/share/doc/hpcc/examples/_hpccinf.txt |
        sed "s/^1000 .*/${input[0]} Ns/; s/^2            Ps/$p Ps/; s/^2            Qs/$q Qs/" >hpccinf.txt
    sed -n '31,$p' /usr/share/doc/hpcc/examples/_hpccinf.txt >>hpccinf.txt
}
command_hpcc() { rm -f hpccoutf.txt && argv=(hpcc); }
result_hpcc() { grep -E '^(Success|HPL_N|PTRANS_residual|StarDGEMM_N|CommWorldProcs|.*Failures)=' hpccoutf.txt; }

prepare_h5py() { :; }
command_h5py() { argv=(/usr/bin/python3 "$root/tests/apps/h5.py" data.h5 "${input[@]}"); }
result_h5py() { grep sha256 output; }

# Debian's mpi4py-fft is for Open MPI. That of PyPI takes the MPI library that it finds.
mpi4py_fft=mpi4py-$pypi_mpi4py_version-fft-2.0.6
mpi4py_place=${XDG_CACHE_HOME:-$HOME/.cache}/libcopy/$mpi4py_fft
prepare_mpi4py-fft() {
    [[ $2 == mpich ]] || return 0
    pypi_environment "$mpi4py_fft" "mpi4py==$pypi_mpi4py_version" "mpi4py-fft==${mpi4py_fft##*-}" 2>&3 &&
        mpich_by_abi_name "$mpi4py_place/lib"
}
command_mpi4py-fft() {
    argv=(/usr/bin/python3)
    [[ $1 != mpich ]] || argv=(env MPI4PY_MPIABI=mpich "LD_LIBRARY_PATH=$mpi4py_place/lib" "$mpi4py_place/bin/python")
    argv+=("$root/tests/apps/fft.py" "${input[@]}")
}
result_mpi4py-fft() { grep sums output; }

prepare_boost() { OMPI_CXX=g++ mpicxx.openmpi -O2 -o boost "$root/tests/apps/boost.cpp" -lboost_mpi -lboost_serialization; }
command_boost() { argv=(./boost "${input[@]}"); }
result_boost() { grep hash output; }

# One or two molecules of water, after Hartree and Fock.
prepare_nwchem() {
    local second=''
    ((input[1] == 1)) || second=$' O 0.0 0.0 3.017\n H 0.0 0.757 2.431\n H 0.0 -0.757 2.431\n'
    cat >water.nw <<TEXT
start water
geometry units angstrom
 O 0.0 0.0 0.117
 H 0.0 0.757 -0.469
 H 0.0 -0.757 -0.469
${second}end
basis
 * library ${input[0]}
end
task scf gradient
TEXT
}
command_nwchem() { argv=(nwchem.openmpi water.nw); }
# The last digits depend on the order in which processes add.
result_nwchem() { awk '/Total SCF energy/ { printf "%.10f\n", $NF }' output; }

# Our own control: conjugate gradients, bound by allreduces of one number and by a halo.
prepare_cg() { "mpicc.$2" -O2 -o cg "$root/tests/apps/cg.c" -lm; }
command_cg() { argv=(./cg "${input[@]}"); }
result_cg() { grep solved output; }
